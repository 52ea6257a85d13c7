import { chatBody, chatLines, pause, repeat, untilOver, type Attack } from '../attack.ts';

// Attacks by providers' answers, and by callers who do not read them.

/** An attack by callers who read answers with this behaviour of the provider, one after the other. */
function answersTo(
  name: string,
  what: string,
  behaviour: string,
  options: { callers: number; stream?: boolean },
): Attack {
  const { callers, stream = false } = options;
  return {
    name,
    what: `a provider answers ${what}; ${callers} callers ask for that again and again`,
    async run(scene) {
      const body = chatBody(await scene.model(behaviour), stream ? { stream } : {});
      await repeat(scene, callers, 100, () => scene.call({ body, patienceMs: 30_000 }));
    },
  };
}

function batchOf(
  name: string,
  what: string,
  options: { behaviour: string; lines: number; shortLines?: number },
): Attack {
  const { behaviour, lines, shortLines = lines } = options;
  return {
    name,
    what: `a batch of ${lines} lines, each answered with ${what}`,
    async run(scene) {
      const count = scene.isShort ? shortLines : lines;
      await scene.createBatch(await scene.upload(chatLines(await scene.model(behaviour), count)));
      await untilOver(scene);
    },
  };
}

export const answerAttacks: readonly Attack[] = [
  answersTo('answers-of-objects', '60 MiB of empty objects', 'objects-60', { callers: 3 }),
  batchOf('poison-batch', '60 MiB of empty objects', { behaviour: 'objects-60', lines: 2 }),
  batchOf('batch-of-8-mib-answers', '8 MiB of text', { behaviour: 'text-8', lines: 400, shortLines: 60 }),
  batchOf('batch-of-20-mib-answers', '20 MiB of text', { behaviour: 'text-20', lines: 100, shortLines: 20 }),
  {
    name: 'batch-of-vectors',
    what: 'a batch of 40 embeddings lines, each answered with 5, 20 or 60 MiB of numbers',
    async run(scene) {
      const models = await Promise.all([5, 20, 60].map((size) => scene.model(`vectors-${size}`)));
      const lines = Array.from({ length: 40 }, (_value, index) => {
        const body = { model: models[index % 3], input: 'Say hello.' };
        return `${JSON.stringify({ custom_id: `line-${index}`, method: 'POST', url: '/v1/embeddings', body })}\n`;
      });
      await scene.createBatch(await scene.upload(lines), '/v1/embeddings');
      await untilOver(scene);
    },
  },
  {
    name: 'clients-that-read-nothing',
    what: '20 callers ask for an answer of 60 MiB and read no byte of it',
    async run(scene) {
      const body = chatBody(await scene.model('text-60'));
      const callers = Array.from({ length: 20 }, async (_value, caller) => {
        await pause(scene, caller * 200);
        await repeat(scene, 1, 500, () => scene.call({ body, readsNothing: true }));
      });
      await Promise.all(callers);
    },
  },
  answersTo('interim-answers', 'interim answers (103) without an end', 'interim', { callers: 4 }),
  answersTo('endless-header', 'a header without an end', 'header', { callers: 8 }),
  answersTo('endless-headers', 'headers without number', 'headers', { callers: 8 }),
  answersTo('tiny-events', 'a stream of small events without an end', 'events', {
    callers: 4,
    stream: true,
  }),
  answersTo('one-byte-chunks', 'a stream in chunks of a byte, all comments', 'comments', {
    callers: 4,
    stream: true,
  }),
];
