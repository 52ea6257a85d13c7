/// <reference types="vite/types/importMeta.d.ts" />

import { expect, test } from 'vitest';
import { findTranslation } from '#libs/providers/dialects.ts';
import { messagesDialect } from '#libs/providers/messages/index.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { translationCall } from '#test/translation-call.ts';
import type { AnswerCase, ConformanceCase } from './conformance-case.ts';
import { framesOf } from './payloads.ts';
import { replay, type Replayed } from './replay.ts';

// The streams of all providers as messages: complete, and cut off at every byte.

const modules = import.meta.glob<{ cases: readonly ConformanceCase[] }>('./cases/*.ts', { eager: true });
type Streamed = { conformanceCase: ConformanceCase; answer: AnswerCase; label: string };
const streams = Object.values(modules)
  .flatMap((module) => module.cases)
  .flatMap((conformanceCase) =>
    conformanceCase.answers.map((answer) => ({
      conformanceCase,
      answer,
      label: `${conformanceCase.provider} ${conformanceCase.model}: ${answer.name}`,
    })),
  )
  // Messages have one choice, and schemas are a matter of the request.
  .filter(({ answer }) => answer.stream !== undefined && answer.request?.['n'] === undefined);

/** Every byte of a short stream; of a longer one those around the ends of its events, and some others. */
const everyByteMax = 2_000;
const stride = 97;

type Event = { type: string; index?: number; delta?: Record<string, string>; content_block?: { type: string } };

/** The text and the arguments of calls, in order, and whether the message has ended. Fails for a wrong order of events. */
function read({ payloads, error }: Replayed): { said: string; isWhole: boolean } {
  const events = payloads.map((payload) => JSON.parse(payload) as Event);
  const letters: Record<string, string> = {
    message_start: 'M',
    content_block_start: '(',
    content_block_delta: '.',
    content_block_stop: ')',
    message_delta: 'D',
    message_stop: 'S',
  };
  const order = events.map(({ type }) => letters[type] ?? '?').join('');
  expect(order).toMatch(error === null ? /^M(\(\.*\))*DS$/ : /^(M(\(\.*\))*(\(\.*)?(DS?)?)?$/);
  const said = events
    .map(({ delta, content_block: block }) =>
      block === undefined
        ? (delta?.['text'] ?? delta?.['thinking'] ?? delta?.['partial_json'] ?? '')
        : `<${block.type}>`,
    )
    .join('');
  return { said, isWhole: order.endsWith('S') };
}

test.for(streams)('$label', async ({ conformanceCase, answer }: Streamed) => {
  const { provider: id, model, wire } = conformanceCase;
  const provider = findProvider(id);
  const translation = provider && findTranslation(provider, 'messages', model);
  if (!translation || !answer.stream) throw new Error(`${id} does not serve messages`);
  const isNative = translation === provider.operations.messages;
  // The adapter of Claude writes messages, too: for the models that a host serves in another way.
  const decoder = isNative ? (provider.operations.chat ?? translation) : translation;
  const body = { model, max_tokens: 99, messages: [{ role: 'user', content: 'Hi' }], stream: true };
  const more = { operation: 'messages', dialect: messagesDialect, stream: true, strict: false } as const;
  const call = translationCall(body, more);
  const frames = framesOf(wire, answer.stream);
  const bytes = Buffer.concat(frames);
  const whole = await replay(decoder, call, [bytes]);
  expect(whole.error).toBeNull();
  const complete = read(whole);
  expect(complete.isWhole).toBe(true);

  let edge = 0;
  const near = new Set(frames.flatMap(({ length }) => [(edge += length) - 2, edge - 1, edge, edge + 1]));
  const wrong: unknown[] = [];
  for (let at = 0; at < bytes.length; at += 1) {
    if (bytes.length > everyByteMax && !near.has(at) && at % stride !== 0) continue;
    const cut = await replay(decoder, call, [bytes.subarray(0, at)]);
    const { said, isWhole } = read(cut);
    const isRight =
      cut.error === null
        ? isWhole && said === complete.said
        : !isWhole && complete.said.startsWith(said) && /^upstream_(truncated|invalid_response)$/.test(cut.error);
    if (!isRight) wrong.push([at, cut.error, said]);
  }
  expect(wrong).toEqual([]);
});
