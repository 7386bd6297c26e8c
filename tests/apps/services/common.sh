# SPDX-License-Identifier: MIT
# What the services of tests/apps/services.py have in common. Each defines
#   inside()  the first command in the container, as root of its user namespace; does not return
#   ready()   succeeds once the service is up
#   probe()   checks the service and what it remembers, and changes it
# RUN is a directory on a tmpfs of the container. Called with the name of one of these.
set -e
RUN=/run/svc
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C RUN

# eventually COMMAND...: succeeds once the command does; a busy machine needs a while
eventually() {
	for _ in $(seq 300); do
		if "$@"; then return 0; fi
		sleep 0.1
	done
	echo "never: $*" >&2
	return 1
}

# session NAME COMMAND...: a client that lives as long as the service and reads lines from a fifo
session() {
	name=$1
	shift
	mkfifo -m 666 "$RUN/$name.in"
	: >"$RUN/$name.out"
	"$@" <"$RUN/$name.in" >>"$RUN/$name.out" 2>&1 &
	sleep 1000000 >"$RUN/$name.in" &
}

said() {
	tail -c "+$(($2 + 1))" "$RUN/$1.out" | grep -q -- "$3"
}

# ask NAME LINE PATTERN: sends a line to a session and waits until its output shows the pattern
ask() {
	before=$(wc -c <"$RUN/$1.out")
	printf '%s\n' "$2" >"$RUN/$1.in"
	eventually said "$1" "$before" "$3"
}

# expect_next VALUE: what the service counts in its memory must be one more than the last time
expect_next() {
	last=$(cat "$RUN/count" 2>/dev/null || echo 0)
	[ "$1" -eq $((last + 1)) ] || { echo "counter $1 after $last" >&2; return 1; }
	echo "$1" >"$RUN/count"
}

hold() {
	while :; do sleep 100000; done
}
