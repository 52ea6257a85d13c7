import { expect, test } from 'vitest';
import type { ReplayJudge } from '#libs/resources/traffic-replays.ts';
import type { ResultLine } from './json-lines.ts';
import { addVerdicts, createJudge } from './judge.ts';

const judge: ReplayJudge = {
  model: 'wise',
  limit: 200,
  seed: 7,
  instructions: 'Be strict.',
  batch_id: 'batch_j',
  target: { type: 'none' },
};
type Shown = { answer_a: string; answer_b: string };
type JudgeLine = { custom_id: string; body: { model: string; messages: { content: string }[] } };

function judgeLines(options: Partial<ReplayJudge>, count: number): JudgeLine[] {
  const sample = createJudge({ ...judge, ...options });
  for (let line = 1; line <= count; line += 1)
    sample.add({ line, request: { messages: [] }, original: ['old'], replay: ['new'] });
  return sample.lines().map((line) => JSON.parse(line.toString()) as JudgeLine);
}
const shownIn = ({ body }: JudgeLine): Shown => JSON.parse(body.messages[1]?.content ?? '') as Shown;

test('the judge does not learn which answer is new, and sees both orders', () => {
  const lines = judgeLines({}, 100);
  const orders = lines.map((line) => shownIn(line).answer_a);
  expect(new Set(orders)).toEqual(new Set(['old', 'new']));
  expect(orders.filter((first) => first === 'new').length).toBeGreaterThan(25);
  expect(JSON.stringify(lines)).not.toMatch(/original|replay/);
  expect(lines[0]?.body.messages[0]?.content).toContain('Be strict.');
});

test('the seed decides the sample and the order', () => {
  const sample = judgeLines({ limit: 10 }, 100);
  expect(sample).toHaveLength(10);
  expect(judgeLines({ limit: 10 }, 100)).toEqual(sample);
  expect(judgeLines({ limit: 10, seed: 8 }, 100)).not.toEqual(sample);
});

async function* results(...answers: [line: number, content: string | null][]): AsyncGenerator<ResultLine> {
  for (const [line, content] of answers) {
    const body = { choices: [{ message: { content } }] };
    yield { line, customId: String(line), status: content === null ? 0 : 200, body };
  }
}

test('verdicts are counted for the replay, whatever the order was', async () => {
  const better = judgeLines({}, 20).map((line): [number, string] => {
    const wanted = shownIn(line).answer_a === 'new' ? 'A' : 'B';
    return [Number(line.custom_id), JSON.stringify({ reason: 'r', better: wanted })];
  });
  const difference = { line: 2, custom_id: 'c', kind: 'different' as const, similarity: 0, original_line: null };
  const found = await addVerdicts(judge, results(...better, [21, '{"better":"tie"}'], [22, 'neither'], [23, null]), [
    { ...difference, verdict: null },
    { ...difference, line: 99, verdict: null },
  ]);
  expect(found.verdicts).toEqual({ judged: 23, wins: 20, ties: 1, losses: 0, unclear: 2 });
  expect(found.differences.map(({ verdict }) => verdict)).toEqual(['win', null]);
});
