import { expect, test } from 'vitest';
import { ChatCompletionRequest } from '#libs/contracts/calls/chat.ts';
import { makeRequests } from './make-requests.ts';
import { makeQuestions } from './read-questions.ts';

const questions = makeQuestions(1_500);
const requests = [...makeRequests({ lines: 6_000, questions })];

test('every request is valid, and no two have the same name or the same prompt', () => {
  for (const { body } of requests) expect(ChatCompletionRequest.safeParse(body).error).toBeUndefined();
  expect(new Set(requests.map(({ customId }) => customId)).size).toBe(6_000);
  expect(new Set(requests.map(({ body }) => JSON.stringify(body['messages']))).size).toBe(6_000);
});

test('they are of many kinds', () => {
  const share = (holds: (body: Record<string, unknown>) => boolean): number =>
    requests.filter(({ body }) => holds(body)).length / requests.length;
  expect(share((body) => 'tools' in body)).toBeGreaterThan(0.1);
  expect(share((body) => 'response_format' in body)).toBeGreaterThan(0.2);
  expect(share((body) => (body['messages'] as unknown[]).length > 3)).toBeGreaterThan(0.1);
  expect(share((body) => String(body['model']).includes('flaky'))).toBeGreaterThan(0.05);
  expect(new Set(requests.map(({ body }) => body['max_tokens'])).size).toBeGreaterThan(4);
  expect(new Set(requests.map(({ body }) => body['temperature'])).size).toBeGreaterThan(8);
});

test('those that must fail are known, and there is one in the smallest batch', () => {
  const failing = requests.filter(({ endsIn }) => endsIn === 'errors');
  expect(failing).toHaveLength(15);
  expect(failing.every(({ body }) => body['model'] === '@simulator/sim-fault-400')).toBe(true);
  expect([...makeRequests({ lines: 1, questions })].map(({ endsIn }) => endsIn)).toEqual(['errors']);
});

test('the same count and questions make the same requests', () => {
  expect([...makeRequests({ lines: 50, questions })]).toEqual([...makeRequests({ lines: 50, questions })]);
});
