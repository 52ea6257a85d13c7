import type { Dialect } from '../provider.ts';
import { ResponseJoiner } from './response-joiner.ts';
import { toRecords } from '../turns/json-value.ts';
import { restTurns } from '../turns/stream-joiner.ts';
import { decodeResponseRequest } from './decode-request.ts';
import { encodeResponse } from './encode-answer.ts';
import { splitResponse } from './split-response.ts';
import { ResponseWriter } from './write-events.ts';

/** OpenAI's Responses API. */
export const responsesDialect: Dialect = {
  operation: 'responses',
  decodeRequest: decodeResponseRequest,
  encodeAnswer: encodeResponse,
  openAnswer: (head, call) => new ResponseWriter(head, call),
  splitAnswer: splitResponse,
  openJoiner: () => new ResponseJoiner(),
  askForRest: ({ input }, text) => {
    const before = typeof input === 'string' ? [{ role: 'user', content: input }] : toRecords(input);
    return { input: [...before, ...restTurns(text, (role, content) => ({ role, content }))] };
  },
};
