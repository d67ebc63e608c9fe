// 400 MB, built and then verified twice: 336 MB of buffers outside of V8's heap, and objects and strings in it.
const BUFFERS = 336, OBJECTS = 400000, MIB = 1 << 20;

const word = (buffer, i) => (Math.imul(i >>> 2, 40503) + Math.imul(buffer, 2654435761)) >>> 0;

const buffers = [];
for (let b = 0; b < BUFFERS; b++) {
	const words = new Uint32Array(MIB / 4);
	for (let i = 0; i < words.length; i++)
		words[i] = word(b, i);
	buffers.push(words);
}
const objects = [];
for (let i = 0; i < OBJECTS; i++)
	objects.push({ i, square: i * i, text: 'object ' + i });

let wrong = 0;
for (const order of [(b) => b, (b) => b * 97 % BUFFERS]) {
	for (let turn = 0; turn < BUFFERS; turn++) {
		const b = order(turn), words = buffers[b];
		for (let i = 0; i < words.length; i++)
			if (words[i] !== word(b, i))
				wrong++;
	}
	objects.forEach((object, i) => {
		if (object.i !== i || object.square !== i * i || object.text !== 'object ' + i)
			wrong++;
	});
}
console.log(`${buffers.length} buffers, ${objects.length} objects, ${wrong} wrong`);
