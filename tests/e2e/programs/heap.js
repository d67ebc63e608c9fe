// 250 MB of objects and buffers, in the main thread and in a worker, built and then verified.
const { Worker, isMainThread, parentPort } = require('worker_threads');

const OBJECTS = 300000, BUFFERS = 40, MIB = 1 << 20;

function part(seed) {
	const map = new Map(), buffers = [];
	for (let i = 0; i < OBJECTS; i++)
		map.set('k' + i, { i, text: 'v' + i * 7 });
	for (let b = 0; b < BUFFERS; b++) {
		const words = new Uint32Array(MIB / 4);
		for (let i = 0; i < words.length; i++)
			words[i] = Math.imul(i, 40503) + b + seed;
		buffers.push(words);
	}
	let wrong = 0;
	for (let i = 0; i < OBJECTS; i++) {
		const found = map.get('k' + i);
		if (!found || found.i !== i || found.text !== 'v' + i * 7)
			wrong++;
	}
	buffers.forEach((words, b) => {
		for (let i = 0; i < words.length; i++)
			if (words[i] !== (Math.imul(i, 40503) + b + seed) >>> 0)
				wrong++;
	});
	return `${map.size} objects, ${buffers.length} buffers, ${wrong} wrong`;
}

if (isMainThread) {
	const worker = new Worker(__filename);
	worker.on('error', (error) => { throw error; });
	worker.on('message', (result) => console.log(part(2), '/', result));
} else {
	parentPort.postMessage(part(1));
}
