import { spawn } from 'node:child_process';
import { closeSync, existsSync, openSync } from 'node:fs';
import { expect, test } from 'vitest';

const destination = new URL('./log-destination.ts', import.meta.url).href;

/** Runs a script with `log`, the destination under test. Returns how it ended and what it wrote. */
async function run(script: string, options: { stdout?: number; reader?: 'none' | 'late' } = {}) {
  const preamble = `import { createLogDestination } from ${JSON.stringify(destination)};`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', preamble + script], {
    stdio: ['pipe', options.stdout ?? 'pipe', 'pipe'],
  });
  let output = '';
  let problems = '';
  const read = () => child.stdout?.on('data', (chunk: Buffer) => (output += String(chunk)));
  child.stderr?.on('data', (chunk: Buffer) => {
    problems += String(chunk);
    if (options.reader === 'late') read();
  });
  if (options.reader === 'none') child.stdout?.destroy();
  if (options.reader === undefined) read();
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve));
  return { code, lines: output.split('\n').slice(0, -1), problems };
}

test('a line that is followed by process.exit is written', async () => {
  const { code, lines } = await run(`createLogDestination().write('last words\\n'); process.exit(3);`);
  expect({ code, lines }).toEqual({ code: 3, lines: ['last words'] });
});

test('after a flush nothing is left to write, even when the write before it is late', async () => {
  const { code, lines } = await run(`
    import { pbkdf2 } from 'node:crypto';
    const log = createLogDestination();
    for (let n = 0; n < 4; n += 1) pbkdf2('', '', 300_000, 64, 'sha512', () => {}); // all threads that write are busy
    log.write('first\\n');
    await new Promise((resolve) => setTimeout(resolve, 30));
    log.write('second\\n');
    await new Promise((resolve) => log.flush(resolve));
    process.exit(0);`);
  expect({ code, lines }).toEqual({ code: 0, lines: ['first', 'second'] });
});

test('lines keep their order over many turns of the event loop, and none is lost', async () => {
  const { lines } = await run(`
    const log = createLogDestination();
    for (let n = 0; n < 5000; n += 1) {
      log.write(n + ' ' + 'x'.repeat(200) + '\\n');
      if (n % 100 === 0) await new Promise(setImmediate);
    }`);
  expect(lines.map((line) => Number(line.split(' ')[0]))).toEqual([...Array(5_000).keys()]);
});

test('a process whose log reader has died can still end', async () => {
  const { code, problems } = await run(
    `const log = createLogDestination();
     const writing = setInterval(() => log.write('line\\n'), 1);
     setTimeout(() => { clearInterval(writing); log.write('one more\\n'); process.exit(0); }, 100);`,
    { reader: 'none' },
  );
  expect({ code, problems }).toEqual({ code: 0, problems: '' });
});

test.skipIf(!existsSync('/dev/full'))(
  'a full disk under the log does not end the process, nor keep it from ending',
  async () => {
    const full = openSync('/dev/full', 'w');
    const { code, problems } = await run(
      `const log = createLogDestination();
     log.write('first\\n');
     setTimeout(() => { log.write('second\\n'); process.exit(0); }, 50);`,
      { stdout: full },
    );
    closeSync(full);
    expect({ code, problems }).toEqual({ code: 0, problems: '' });
  },
);

test('a reader that hangs costs log lines, which are counted, but no memory', async () => {
  const { code, lines } = await run(
    `const log = createLogDestination({ pendingMax: 100_000 });
     for (let n = 0; n < 500; n += 1) {
       log.write('x'.repeat(9_999) + '\\n');
       await new Promise(setImmediate);
     }
     process.stderr.write('written');`,
    { reader: 'late' },
  );
  const isNotice = (line: string): boolean => line.startsWith('{');
  const dropped = lines.filter(isNotice).reduce((sum, line) => sum + (JSON.parse(line) as { lines: number }).lines, 0);
  expect(code).toBe(0);
  expect(dropped).toBeGreaterThan(400);
  expect(lines.filter((line) => !isNotice(line)).length + dropped).toBe(500);
});
