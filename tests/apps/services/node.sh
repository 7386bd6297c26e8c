# SPDX-License-Identifier: MIT
# A Node.js HTTP server with a worker thread, a shared array, a watched directory, a child and a timer.
inside() {
	cat >$RUN/server.js <<-'EOF2'
		const http = require('http'), fs = require('fs'), cp = require('child_process');
		const { Worker } = require('worker_threads');
		const dir = process.argv[2], shared = new SharedArrayBuffer(8), array = new Int32Array(shared);
		new Worker(`const { workerData } = require('worker_threads'); const a = new Int32Array(workerData);
			setInterval(() => Atomics.add(a, 0, 1), 20)`, { eval: true, workerData: shared });
		let hits = 0, ticks = 0, seen = 0;
		setInterval(() => ticks++, 25);
		fs.mkdirSync(dir + '/watched', { recursive: true });
		fs.watch(dir + '/watched', () => seen++);
		const child = cp.spawn('cat');
		http.createServer((q, s) => {
			if (q.url === '/look') return s.end(JSON.stringify({ ticks, worker: array[0], seen }) + '\n');
			const n = ++hits;
			child.stdout.once('data', d => s.end(n + ' ' + d.toString().trim() + '\n'));
			child.stdin.write('echo' + n + '\n');
		}).listen(8082, '127.0.0.1');
	EOF2
	exec node $RUN/server.js $RUN
}

get() {
	curl -sf -m 20 "http://127.0.0.1:8082/$1"
}

field() {
	get look | sed "s/.*\"$1\":\([0-9]*\).*/\1/"
}

more() {
	[ "$(field "$1")" -gt "$2" ]
}

ready() {
	get look
}

probe() {
	ticks=$(field ticks) worker=$(field worker) seen=$(field seen)
	answer=$(get hit)
	expect_next "${answer% *}"
	[ "${answer#* }" = "echo$(cat $RUN/count)" ]
	touch "$RUN/watched/file$(cat $RUN/count)"
	eventually more ticks "$ticks"
	eventually more worker "$worker"
	eventually more seen "$seen"
}
