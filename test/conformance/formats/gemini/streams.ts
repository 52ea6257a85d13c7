import type { StreamForm } from '#apps/simulator/wire/wire-format.ts';
import { googleError } from './google-error.ts';

export const googleJson = 'application/json; charset=UTF-8';

/** One event of `alt=sse`; Google ends its lines with CRLF. */
export function sseFrame(payload: object): string {
  return `data: ${JSON.stringify(payload)}\r\n\r\n`;
}

export const eventForm: StreamForm = {
  contentType: 'text/event-stream',
  errorFrame: (failure) => sseFrame(googleError(failure)),
  strayErrorFrame: (failure) => `event: error\r\n${sseFrame(googleError(failure).error)}`,
  brokenFrame: 'data: {"candidates":[{"content":\r\n\r\n',
  idleFrame: ': keep-alive\r\n\r\n',
};

/** Without `alt=sse`, a stream is one JSON list that is sent element by element. */
export const arrayForm: StreamForm = {
  contentType: googleJson,
  errorFrame: (failure, first) => `${first === true ? '[' : ',\r\n'}${JSON.stringify(googleError(failure))}]`,
  strayErrorFrame: (failure) => `,\r\n${JSON.stringify(googleError(failure).error)}]`,
  brokenFrame: ',\r\n{"candidates":[{"content":',
  idleFrame: undefined,
};
