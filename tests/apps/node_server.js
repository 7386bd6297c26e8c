// SPDX-License-Identifier: MIT
// node_server.js DIR PORT: an HTTP server with a worker thread, timers, a child behind pipes, and a
// directory that it watches. Each answer is all that it knows, as JSON.
'use strict';
const { spawn } = require('child_process');
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const path = require('path');
const { Worker } = require('worker_threads');

const [directory, port] = process.argv.slice(2);
const shared = new Int32Array(new SharedArrayBuffer(4));
const state = { hits: 0, ticks: 0 };
const table = new Map();

for (let i = 0; i < 50000; i++) table.set(`key${i}`, { square: i * i, text: 'x'.repeat(i % 50) });

const watched = path.join(directory, 'watched');
const names = new Set();
fs.mkdirSync(watched);
fs.watch(watched, (event, name) => names.add(name));

setInterval(() => state.ticks++, 20);

const worker = new Worker(`
	const { parentPort, workerData } = require('worker_threads');
	setInterval(() => Atomics.add(workerData, 0, 1), 10);
	let answered = 0;
	parentPort.on('message', (n) => parentPort.postMessage([n * n, ++answered]));
`, { eval: true, workerData: shared });
const cat = spawn('cat', { stdio: ['pipe', 'pipe', 'ignore'] });

const once = (from, event) => new Promise((resolve) => from.once(event, resolve));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const told = { ticks: 0, beats: 0 };

// or until it is clear that it will never be
async function until(condition) {
	for (let i = 0; i < 1500 && !condition(); i++) await sleep(10);
}

// what the tree has kept, and what it can still do: the thread, the child, the thread pool, a new child
async function answer() {
	const n = ++state.hits;
	const fromWorker = once(worker, 'message');
	worker.postMessage(n);
	const echo = once(cat.stdout, 'data');
	cat.stdin.write(`line ${n}`);
	const hash = new Promise((resolve) => crypto.pbkdf2('secret', `${n}`, 10, 16, 'sha256',
		(error, key) => resolve(error ? String(error) : key.toString('hex'))));
	const late = spawn('echo', [`${n}`], { stdio: ['ignore', 'pipe', 'ignore'] });
	const said = once(late.stdout, 'data');
	const ended = once(late, 'close');
	fs.writeFileSync(path.join(watched, `file${n}`), '');
	await until(() => names.size >= n && state.ticks > told.ticks && Atomics.load(shared, 0) > told.beats);
	const wrong = [...table].filter(([key, value]) => key !== `key${Math.sqrt(value.square)}`).length;
	const [square, answered] = await fromWorker;
	const rest = { echo: String(await echo), hash: await hash, child: Number(await said), ended: await ended };
	told.ticks = state.ticks;
	told.beats = Atomics.load(shared, 0);
	return { ...state, ...told, ...rest, square, answered, wrong, seen: names.size };
}

const serve = (request, response) => answer().then((result) => response.end(JSON.stringify(result)));
http.createServer(serve).listen(Number(port), '127.0.0.1');
http.createServer(serve).listen(path.join(directory, 'socket'));
