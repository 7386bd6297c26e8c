# SPDX-License-Identifier: MIT
# Redis on a TCP port and a unix socket, with an append-only file and a client that is blocked in BLPOP.
inside() {
	redis-server --port 6379 --bind 127.0.0.1 --unixsocket $RUN/redis.sock --dir $RUN \
		--appendonly yes --appendfsync everysec --save '' --daemonize no &
	eventually redis-cli ping
	session client redis-cli -s $RUN/redis.sock
	session tcp redis-cli -h 127.0.0.1
	ask tcp 'ping' PONG
	printf 'blpop queue 0\n' >$RUN/client.in
	hold
}

blocked() {
	redis-cli info clients | grep -q '^blocked_clients:1'
}

ready() {
	redis-cli ping | grep -q PONG && blocked
}

probe() {
	expect_next "$(redis-cli incr hits)"
	blocked
	before=$(wc -c <$RUN/client.out)
	redis-cli rpush queue "item$(cat $RUN/count)." >/dev/null
	eventually said client "$before" "item$(cat $RUN/count)\."
	printf 'blpop queue 0\n' >$RUN/client.in
	eventually blocked
	ask tcp 'get hits' "^$(cat $RUN/count)\$"
}
