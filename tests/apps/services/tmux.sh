# SPDX-License-Identifier: MIT
# A tmux server with two panes: a shell with a job, and a full-screen program.
mux() {
	tmux -S $RUN/tmux.sock "$@"
}

inside() {
	export TERM=xterm HOME=$RUN SHELL=/bin/sh
	seq 1000 >$RUN/text
	mux -f /dev/null new-session -d -s a -x 80 -y 24 'PS1="> " sh'
	mux split-window -t a "less $RUN/text"
	mux send-keys -t a.0 'n=0; sleep 100000 & echo up=$n' Enter
	hold
}

pane_has() {
	mux capture-pane -p -t "$1" | grep -q -- "$2"
}

top_line() {
	[ "$(mux capture-pane -p -t a.1 | head -n1)" = "$1" ]
}

ready() {
	pane_has a.0 '^up=0' && top_line 1
}

probe() {
	next=$(($(cat $RUN/count 2>/dev/null || echo 0) + 1))
	mux send-keys -t a.0 'n=$((n+1)); clear; echo v=$n; jobs' Enter
	eventually pane_has a.0 "^v=$next\$"
	eventually pane_has a.0 'sleep 100000'
	expect_next $next
	mux send-keys -t a.1 j
	eventually top_line $((next + 1))
}
