import type { Dialect } from '../provider.ts';
import { ContentJoiner } from './content-joiner.ts';
import { type Json, toRecords } from '../turns/json-value.ts';
import { restTurns } from '../turns/stream-joiner.ts';
import { adaptEdits } from './adapt-edits.ts';
import { decodeGenerateRequest } from './decode-request.ts';
import { encodeGenerateAnswer } from './encode-answer.ts';
import { GenerateWriter } from './write-stream.ts';

/** Google's generateContent. */
export const generateContentDialect: Dialect = {
  operation: 'generate_content',
  decodeRequest: decodeGenerateRequest,
  adaptEdits,
  encodeAnswer: encodeGenerateAnswer,
  openAnswer: (head) => new GenerateWriter(head),
  splitAnswer: (answer) => [JSON.stringify(answer)],
  openJoiner: () => new ContentJoiner(),
  askForRest: ({ contents }, text) => {
    const toTurn = (role: string, said: string): Json => ({
      role: role === 'user' ? role : 'model',
      parts: [{ text: said }],
    });
    const before = typeof contents === 'string' ? [toTurn('user', contents)] : toRecords(contents);
    return { contents: [...before, ...restTurns(text, toTurn)] };
  },
};
