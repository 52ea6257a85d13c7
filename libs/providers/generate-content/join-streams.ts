import { type Json, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import {
  mostShown,
  restTurns,
  type BrokenStreams,
  type PayloadShown,
  type Shown,
  type StreamJoin,
} from '../turns/stream-join.ts';

/** What a piece of an answer shows. */
function readShownContent(payload: string): PayloadShown {
  const { candidates, promptFeedback } = toRecord(parseJson(payload));
  let shown: Shown = promptFeedback === undefined ? 'nothing' : 'other';
  let text = '';
  for (const { index = 0, content, finishReason } of toRecords(candidates)) {
    if (index !== 0 || finishReason !== undefined) return { shown: 'other', text };
    for (const part of toRecords(toRecord(content)['parts'])) {
      const seen = readPart(part);
      shown = mostShown(shown, seen.shown);
      text += seen.text;
    }
  }
  return { shown, text };
}

function readPart({ text, thought, thoughtSignature: _signature, ...rest }: Json): PayloadShown {
  if (typeof text !== 'string' || Object.keys(rest).length > 0) return { shown: 'other', text: '' };
  if (thought === true) return { shown: 'reasoning', text: '' };
  return { shown: text === '' ? 'nothing' : 'text', text };
}

/** Joins streams of answers, whose pieces are complete; all have the ID of the first one. */
function joinContents(sent: readonly string[]): StreamJoin {
  const { responseId } = toRecord(parseJson(sent[0] ?? ''));
  const id = responseId === undefined ? {} : { responseId };
  return { ends: [], push: (payload) => [JSON.stringify({ ...(JSON.parse(payload) as Json), ...id })] };
}

/** Streams of Gemini's API that break off. */
export const brokenContents: BrokenStreams = {
  readShown: readShownContent,
  join: joinContents,
  askForRest: ({ contents }, text) => {
    const before = typeof contents === 'string' ? [{ role: 'user', parts: [{ text: contents }] }] : toRecords(contents);
    const turns = restTurns(text, (role, said) => ({
      role: role === 'user' ? role : 'model',
      parts: [{ text: said }],
    }));
    return { contents: [...before, ...turns] };
  },
};
