import { chatBody, pause, repeat, type Attack, type AttackCall, type Scene } from '../attack.ts';
import { arrayOf } from '../rig/hostile-answers.ts';

// Attacks by requests within the limits of size (10 MiB by default).

const mebibyte = 1_048_576;
const sizeBytes = 10 * mebibyte - 1_024;

/** A chat body of the maximum size, with one additional unknown member. */
function withMember(model: string, value: Buffer): Buffer {
  const body = chatBody(model);
  return Buffer.concat([Buffer.from(`${body.slice(0, -1)},"x":`), value, Buffer.from('}')]);
}

/** Many callers, each with a body that is small on the wire and large when it is parsed. The provider never answers. */
function bodiesOfObjects(callers: number, word: string): Attack {
  return {
    name: `${word}-bodies-of-objects`,
    what: `${word} valid bodies of 10 MiB at once, all of them empty objects`,
    async run(scene) {
      const body = withMember(await scene.model('hang'), arrayOf('{}', sizeBytes - 512));
      await repeat(scene, callers, 500, () => scene.call({ body, patienceMs: 4_000 }));
    },
  };
}

/** One caller who sends a body that is slow to check, a few times per second. */
function dearBody(name: string, what: string, make: (model: string) => Buffer | string): Attack {
  return {
    name,
    what: `one caller sends ${what}, four times a second at most`,
    async run(scene) {
      const body = make(await scene.model('fast'));
      await repeat(scene, 1, 250, () => scene.call({ body, patienceMs: 20_000 }));
    },
  };
}

/** Callers who begin a request and then send one byte of it per second. */
function slowSenders(name: string, what: string, head: Buffer, call: Pick<AttackCall, 'path' | 'headers'>): Attack {
  const callers = 200;
  async function* drip(scene: Scene): AsyncGenerator<Buffer> {
    yield head;
    while (!scene.signal.aborted) {
      await pause(scene, 1_000);
      yield Buffer.from(' ');
    }
  }
  return {
    name,
    what: `${callers} callers ${what} at one byte a second`,
    // Longer than the time limit for a body, and long enough to measure a rate.
    secondsMin: 40,
    run: (scene) => repeat(scene, callers, 1_000, () => scene.call({ ...call, body: drip(scene) })),
  };
}

const boundary = 'sluice-abuse';
const uploadHead = Buffer.from(
  `--${boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--${boundary}\r\n` +
    'content-disposition: form-data; name="file"; filename="slow.jsonl"\r\n\r\n{',
);

export const bodyAttacks: readonly Attack[] = [
  bodiesOfObjects(3, 'three'),
  bodiesOfObjects(30, 'thirty'),
  dearBody('deep-arrays', '10 MiB of arrays in arrays', (model) =>
    // As deep as allowed, again and again.
    withMember(model, arrayOf(`${'['.repeat(60)}${']'.repeat(60)}`, sizeBytes - 512)),
  ),
  dearBody('deepest-array', '5 MiB of opening brackets and as many closing ones', (model) =>
    withMember(
      model,
      Buffer.concat([Buffer.alloc(5 * mebibyte - 1_024, '['), Buffer.alloc(5 * mebibyte - 1_024, ']')]),
    ),
  ),
  dearBody('empty-objects', '10 MiB of empty objects', (model) => withMember(model, arrayOf('{}', sizeBytes - 512))),
  dearBody('line-ends-and-a-letter', '10 MiB of line ends and then a letter', () =>
    Buffer.concat([Buffer.alloc(sizeBytes, '\n'), Buffer.from('x')]),
  ),
  dearBody('bad-messages', '99,000 messages that are none', (model) =>
    JSON.stringify({ model, messages: Array.from({ length: 99_000 }, () => ({ role: 'nobody' })) }),
  ),
  dearBody('escaped-quotes', 'a good message of 10 MiB of escaped quotes', (model) =>
    JSON.stringify({ model, messages: [{ role: 'user', content: '"'.repeat(sizeBytes / 2 - 512) }] }),
  ),
  dearBody('many-messages', 'a good conversation of 15,900 messages, 9 MiB', (model) =>
    JSON.stringify({
      model,
      messages: Array.from({ length: 15_900 }, (_, index) => ({
        role: 'user',
        content: `${index} `.padEnd(560, 'so '),
      })),
    }),
  ),
  dearBody('many-names', '45,000 members with names of their own, 9 MiB', (model) => {
    const names = Array.from({ length: 44_900 }, (_, index) => [`${'n'.repeat(190)}${index}`, index]);
    return JSON.stringify({ model, messages: [{ role: 'user', content: 'Hi.' }], x: Object.fromEntries(names) });
  }),
  slowSenders('slow-uploads', 'upload a file', uploadHead, {
    path: '/v1/files',
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
  }),
  slowSenders('slow-bodies', 'send the body of a chat call', Buffer.from('{'), {}),
];
