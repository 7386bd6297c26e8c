# SPDX-License-Identifier: MIT
# PostgreSQL with POSIX dynamic shared memory and a System V segment, and a session that holds an open
# transaction, a temporary table and an advisory lock.
BIN=$(ls -d /usr/lib/postgresql/*/bin | tail -n1)

as_postgres() {
	setpriv --reuid postgres --regid postgres --clear-groups env PGHOST=127.0.0.1 PGPORT=5432 "$@"
}

ask_once() {
	as_postgres psql -At -d postgres -c "$1" | tail -n1
}

inside() {
	chmod 755 $RUN
	mkdir -m 700 $RUN/data $RUN/socket
	chown postgres:postgres $RUN/data $RUN/socket
	as_postgres "$BIN/initdb" -D $RUN/data -A trust --no-sync >/dev/null
	as_postgres "$BIN/postgres" -D $RUN/data -k $RUN/socket -c listen_addresses=127.0.0.1 \
		-c shared_memory_type=sysv -c dynamic_shared_memory_type=posix \
		-c huge_pages=off -c shared_buffers=8MB -c max_parallel_workers=2 -c autovacuum=off &
	eventually as_postgres "$BIN/pg_isready" -q
	as_postgres psql -q -d postgres -c 'create table t(n int); insert into t values (0);'
	session client as_postgres psql -d postgres -At
	ask client 'create temp table s(n int); insert into s values (0);' 'INSERT'
	ask client 'select pg_advisory_lock(42); begin; update t set n = n; select 77;' '^77$'
	hold
}

ready() {
	grep -q '^77$' $RUN/client.out
}

probe() {
	[ "$(ask_once 'select pg_try_advisory_lock(42)')" = f ]
	ask client "update s set n = n + 1; select 'v=' || n from s;" '^v='
	expect_next "$(tail -n1 $RUN/client.out | sed 's/v=//')"
	[ "$(ask_once 'set max_parallel_workers_per_gather=2; set parallel_setup_cost=0;
		set parallel_tuple_cost=0; set min_parallel_table_scan_size=0; select n from t')" = 0 ]
}
