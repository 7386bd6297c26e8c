#!/bin/bash
# SPDX-License-Identifier: MIT
# The session of the container's user: bus, X server, window manager, web server, and one program.
#	session.sh x|term|chromium|code|session, or with more to do: opening|building|browsing|coding|working
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

printf 'int main(void) { return 0; }\n' >hello.c
echo begin >quiet

x() {
	:
}

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

browser() {
	/usr/lib/chromium/chromium --user-data-dir="$HOME/profile" \
		--no-first-run --no-default-browser-check --disable-gpu --disable-quic \
		--disable-background-networking --disable-component-update --disable-sync \
		--password-store=basic --window-size=1200,820 --window-position=20,20 \
		--disable-renderer-backgrounding --disable-background-timer-throttling \
		--disable-backgrounding-occluded-windows \
		--remote-debugging-port=9222 '--remote-allow-origins=*' "$@"
}

chromium() {
	python3 -u /run/kit/server.py 8000 &
	until_true answers 8000
	browser 'http://127.0.0.1:8000/page.html?p=c' 'http://127.0.0.1:8000/page.html?p=b' \
		'http://127.0.0.1:8000/page.html?p=a' &
}

code_server() {
	local settings=$HOME/.local/share/code-server/User/settings.json

	mkdir -p project "$(dirname "$settings")"
	printf 'function f(x) { return x + 1 }\n' >project/a.js
	cat >"$settings" <<-'EOF'
		{"telemetry.telemetryLevel": "off", "workbench.startupEditor": "none", "update.mode": "none",
		"security.workspace.trust.enabled": false, "extensions.autoCheckUpdates": false,
		"typescript.disableAutomaticTypeAcquisition": true, "editor.autoClosingBrackets": "never",
		"terminal.integrated.environmentChangesRelaunch": false,
		"workbench.secondarySideBar.defaultVisibility": "hidden"}
	EOF
	# its two processes give each other ten seconds, which a crowded machine does not
	until node /opt/ckpt-vscode/node_modules/code-server/out/node/entry.js --auth none --disable-telemetry \
		--disable-update-check --bind-addr 127.0.0.1:8080 "$HOME/project"; do
		:
	done &
	until_true answers 8080
}

workbench() {
	browser --app="http://127.0.0.1:8080/?folder=$HOME/project" &
}

code() {
	code_server
	workbench
}

session() {
	term
	code_server
	chromium
	# a browser that does not answer a second one in time is killed by that
	until_true answers 9222
	workbench
}

# Does something again and again, and counts, until there is a file `quiet`; then until there is none.
again() {
	local n=0

	while :; do
		while [ -e quiet ]; do
			echo "$(cat quiet): $n" >rests.new && mv rests.new rests
			sleep 0.1
		done
		"$@" && n=$((n + 1))
		echo "$n" >count.new && mv count.new count
	done
}

# Gives a window the keyboard, and types. A window that comes in between may take the keyboard away, and
# xdotool waits for it.
types() {
	local name=$1

	shift
	timeout 20 xdotool search --onlyvisible --name "$name" windowactivate --sync "$@"
}

open_window() {
	xterm -e true
}

build() {
	cc -o hello hello.c
}

browse() {
	python3 /run/kit/ask.py open 'http://localhost:8000/page.html?p=new'
	types 'lab page' type --delay 5 'somebody types'
	python3 /run/kit/ask.py close 'p=new'
}

edit() {
	types code-server key ctrl+1 key ctrl+End type --delay 5 $'// somebody types\n'
}

all_of_it() {
	build &
	browse
	edit
	wait $!
}

opening() {
	again open_window &
}

building() {
	term
	again build &
}

browsing() {
	chromium
	again browse &
}

coding() {
	code
	again edit &
}

working() {
	session
	again all_of_it &
}

"$1"
wait
