import type { Dialect } from '../provider.ts';
import { brokenResponses } from './join-streams.ts';
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
  brokenStreams: brokenResponses,
};
