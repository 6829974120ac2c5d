// Node's child_process.fork, timed for benches/table: one job, a task of 200 bytes in, an event and a result out,
// worker gone. `node peer.js` says "ready", then answers each line of its input (start, batch N) with "ok" and
// nanoseconds: to the first event, to the end of all.
'use strict';
const { fork } = require('node:child_process');
const readline = require('node:readline');

const EVENT = { name: 'read_file', preview: 'x'.repeat(120), args: { path: 'src/run/batch.rs', offset: '1' } };

function work() {
  process.on('message', (task) => {
    process.send({ event: { ...EVENT, child: task.index } });
    process.send({ done: task.index }, () => process.disconnect());
  });
}

function job(index, spoke) {
  return new Promise((resolve, reject) => {
    const child = fork(__filename, ['worker'], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
    let result;
    child.on('message', (said) => (said.event ? spoke() : (result = said)));
    child.on('error', reject);
    // Its end may be told before its last words: the line's end comes after them.
    let ends = 2;
    const ended = () => --ends || (result ? resolve() : reject(new Error('a worker without a result')));
    child.on('exit', ended);
    child.on('disconnect', ended);
    child.send({ index, goal: 'g'.repeat(200) });
  });
}

async function batch(count) {
  const began = process.hrtime.bigint();
  let first;
  const spoke = () => (first ??= process.hrtime.bigint() - began);
  await Promise.all(Array.from({ length: count }, (_, index) => job(index, spoke)));
  return [first, process.hrtime.bigint() - began];
}

async function serve() {
  console.log('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [what, count] = line.split(' ');
    try {
      if (what !== 'start' && what !== 'batch') throw new Error(`no such round: ${line}`);
      console.log(`ok ${(await batch(Number(count ?? 1))).join(' ')}`);
    } catch (error) {
      console.log(`failed ${error.message}`);
    }
  }
}

if (process.argv[2] === 'worker') work();
else serve();
