#!/bin/bash
# SPDX-License-Identifier: MIT
# The session of the container's user: bus, X server, window manager, web server, and one program.
#	session.sh term|chromium
set -u
cd "$HOME" || exit 1
export DBUS_SESSION_BUS_ADDRESS=unix:path=$XDG_RUNTIME_DIR/bus
exec </dev/null >>"$HOME/session.log" 2>&1

until_true() {
	for _ in $(seq 600); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
}

answers() {
	(exec 3<>"/dev/tcp/127.0.0.1/$1")
}

dbus-daemon --session --nofork --nopidfile --nosyslog --address="$DBUS_SESSION_BUS_ADDRESS" &
Xvfb "$DISPLAY" -screen 0 1280x900x24 -nolisten tcp -ac -noreset &
until_true xdpyinfo
openbox &

term() {
	local tmux=(tmux -L desk -f /dev/null)

	printf 'one line\n' >note
	xterm -geometry 80x24+10+10 -T shell -e bash --norc -i &
	"${tmux[@]}" new-session -d -s main -n sh -x 100 -y 30 'bash --norc -i'
	"${tmux[@]}" new-window -t main -n vim 'vim -N -u NONE -i NONE note'
	"${tmux[@]}" new-window -t main -n py 'python3 -q -i /run/kit/count.py'
	"${tmux[@]}" new-window -t main -n node 'node -i'
	"${tmux[@]}" new-window -t main -n jobs 'bash --norc -i'
	xterm -geometry 100x30+540+10 -T tmux -e "${tmux[@]}" attach -t main &
	"${tmux[@]}" send-keys -t main:node 'let n = 0; setInterval(() => n++, 100); 0' Enter
	# shellcheck disable=SC2016 # for the shell in there
	"${tmux[@]}" send-keys -t main:jobs 'sleep 99999 &' Enter \
		'n=0; while sleep 0.2; do n=$((n+1)); echo $n > jobs; done | cat' Enter
	"${tmux[@]}" select-window -t main:sh
}

chromium() {
	python3 -u /run/kit/server.py 8000 &
	until_true answers 8000
	/usr/lib/chromium/chromium --user-data-dir="$HOME/profile" \
		--no-first-run --no-default-browser-check --disable-gpu --disable-quic \
		--disable-background-networking --disable-component-update --disable-sync \
		--password-store=basic --window-size=1200,820 --window-position=20,20 \
		--disable-renderer-backgrounding --disable-background-timer-throttling \
		--disable-backgrounding-occluded-windows \
		--remote-debugging-port=9222 '--remote-allow-origins=*' \
		'http://127.0.0.1:8000/page.html?p=c' 'http://127.0.0.1:8000/page.html?p=b' \
		'http://127.0.0.1:8000/page.html?p=a' &
}

"$1"
wait
