import { repeat, type Attack } from '../attack.ts';
import { insertCalls, insertPrompt } from '../rig/insert-rows.ts';

// Attacks by reading what the attacker's own workspace has stored.

export const readAttacks: readonly Attack[] = [
  {
    name: 'replays-of-large-versions',
    what: 'eight callers replay a prompt with 300 versions of 200 KiB, and four list its events',
    prepare: ({ pool, isShort }) =>
      insertPrompt(pool, 'prompt_abuse', { versions: isShort ? 60 : 300, bytes: 204_800 }),
    async run(scene) {
      const replay = repeat(scene, 8, 0, () => read(scene, '/v1/events/replay?stream=prompt_abuse'));
      const list = repeat(scene, 4, 0, () => read(scene, '/v1/events?stream=prompt_abuse&limit=100'));
      await Promise.all([replay, list]);
    },
  },
  {
    name: 'searches-of-the-log',
    what: 'sixteen callers search 400,000 records of the request log for something that none of them has',
    prepare: ({ pool, isShort }) => insertCalls(pool, isShort ? 20_000 : 400_000),
    run: (scene) =>
      repeat(scene, 16, 0, () => read(scene, '/v1/logs?model=none&metadata=%7B%22team%22%3A%22none%22%7D')),
  },
];

const read = (scene: Parameters<Attack['run']>[0], path: string): Promise<string> =>
  scene.call({ method: 'GET', path, patienceMs: 30_000 });
