import { claudeSigner } from '../anthropic/decode.ts';
import { asNumber, asText, type Json, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import { wrapSignature } from '../turns/signatures.ts';
import { restTurns, type BrokenStreams, type PayloadShown, type Shown, type StreamJoin } from '../turns/stream-join.ts';

/** Reasoning that broke off has no signature of its author. This one makes that it goes back to no model. */
const brokenSigner = 'broken';

const shownByDelta: Readonly<Record<string, Shown>> = {
  text_delta: 'text',
  thinking_delta: 'reasoning',
  signature_delta: 'reasoning',
};
const shownByBlock: Readonly<Record<string, Shown>> = {
  text: 'nothing',
  thinking: 'reasoning',
  redacted_thinking: 'reasoning',
};

/** What an event shows. */
function readShownEvent(payload: string): PayloadShown {
  const { type, delta, content_block: block } = toRecord(parseJson(payload));
  switch (type) {
    case 'message_start':
    case 'ping':
    case 'content_block_stop':
      return { shown: 'nothing', text: '' };
    case 'content_block_start': {
      const { type: kind, text = '' } = toRecord(block);
      const shown = text === '' ? (shownByBlock[String(kind)] ?? 'other') : 'text';
      return { shown, text: asText(text) ?? '' };
    }
    case 'content_block_delta': {
      const { type: kind, text } = toRecord(delta);
      return { shown: shownByDelta[String(kind)] ?? 'other', text: asText(text) ?? '' };
    }
    default:
      return { shown: 'other', text: '' };
  }
}

/** Joins streams of messages: the second one has no start, and its blocks follow those of the first one. */
function joinMessageEvents(sent: readonly string[]): StreamJoin {
  let blocks = 0;
  let open: { index: number; isUnsigned: boolean } | null = null;
  for (const payload of sent) {
    const { type, index, delta, content_block: block } = toRecord(parseJson(payload));
    const at = asNumber(index) ?? 0;
    if (type === 'content_block_start') {
      blocks = Math.max(blocks, at + 1);
      open = { index: at, isUnsigned: toRecord(block)['type'] === 'thinking' };
    } else if (type === 'content_block_stop') open = null;
    else if (toRecord(delta)['type'] === 'signature_delta' && open !== null) open.isUnsigned = false;
  }
  return {
    ends: open === null ? [] : endBlock(open),
    push: (payload) => {
      const event = JSON.parse(payload) as Json;
      if (event['type'] === 'message_start') return [];
      const index = asNumber(event['index']);
      return [index === undefined ? payload : JSON.stringify({ ...event, index: index + blocks })];
    },
  };
}

function endBlock({ index, isUnsigned }: { index: number; isUnsigned: boolean }): string[] {
  const end = JSON.stringify({ type: 'content_block_stop', index });
  if (!isUnsigned) return [end];
  const delta = { type: 'signature_delta', signature: wrapSignature(claudeSigner, brokenSigner, '') };
  return [JSON.stringify({ type: 'content_block_delta', index, delta }), end];
}

/** Streams of Anthropic's Messages API that break off. */
export const brokenMessages: BrokenStreams = {
  readShown: readShownEvent,
  join: joinMessageEvents,
  askForRest: (body, text) => ({
    messages: [...toRecords(body['messages']), ...restTurns(text, (role, content) => ({ role, content }))],
  }),
};
