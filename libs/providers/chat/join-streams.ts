import { asNumber, asText, type Json, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import {
  mostShown,
  restTurns,
  type BrokenStreams,
  type PayloadShown,
  type Shown,
  type StreamJoin,
} from '../turns/stream-join.ts';

/** How providers name the pieces of reasoning. */
const reasoningMembers: ReadonlySet<string> = new Set([
  'reasoning_content',
  'reasoning',
  'reasoning_details',
  'content_blocks',
]);
const isEmpty = (value: unknown): boolean =>
  value === null || value === '' || (Array.isArray(value) && value.length === 0);

/** What a chunk shows. */
function readShownChunk(payload: string): PayloadShown {
  const choices = toRecords(toRecord(parseJson(payload))['choices']);
  let shown: Shown = 'nothing';
  let text = '';
  for (const { index, delta, finish_reason: reason } of choices) {
    if ((index ?? 0) !== 0 || !isEmpty(reason ?? null)) return { shown: 'other', text };
    for (const [name, value] of Object.entries(toRecord(delta))) {
      if (name === 'role' || isEmpty(value)) continue;
      if (name === 'content' && typeof value === 'string') text += value;
      shown = mostShown(shown, name === 'content' ? 'text' : reasoningMembers.has(name) ? 'reasoning' : 'other');
    }
  }
  return { shown, text };
}

/** Joins streams of chunks: all have the ID, the time and the model of the first one (SSE-2). */
function joinChunks(sent: readonly string[]): StreamJoin {
  const chunks = sent.map((payload) => toRecord(parseJson(payload)));
  const { id, created, model } = chunks[0] ?? {};
  const blocks = chunks.flatMap((chunk) => toRecords(chunk['choices']).flatMap(blockIndexes));
  const offset = 1 + Math.max(-1, ...blocks);
  return {
    ends: [],
    push: (payload) => {
      const chunk = { ...(JSON.parse(payload) as Json), id, created, model };
      const choices = toRecords((chunk as Json)['choices']).map((choice) => follow(choice, offset));
      const isKept = choices.length === 0 || choices.some((choice) => choice !== null);
      return isKept ? [JSON.stringify({ ...chunk, choices: choices.filter((choice) => choice !== null) })] : [];
    },
  };
}

const blockIndexes = ({ delta }: Json): number[] =>
  toRecords(toRecord(delta)['content_blocks']).map((block) => asNumber(block['index']) ?? 0);

/** null for a choice that only has the role, which the first stream has had. */
function follow(choice: Json, offset: number): Json | null {
  const { role: _role, content_blocks: blocks, ...delta } = toRecord(choice['delta']);
  const isOver = asText(choice['finish_reason']) !== undefined;
  if (!isOver && blocks === undefined && Object.values(delta).every(isEmpty)) return null;
  const moved = toRecords(blocks).map((block) => ({ ...block, index: (asNumber(block['index']) ?? 0) + offset }));
  return { ...choice, delta: blocks === undefined ? delta : { ...delta, content_blocks: moved } };
}

/** Streams of chat completions that break off. */
export const brokenChunks: BrokenStreams = {
  readShown: readShownChunk,
  join: joinChunks,
  askForRest: (body, text) => ({
    messages: [...toRecords(body['messages']), ...restTurns(text, (role, content) => ({ role, content }))],
  }),
};
