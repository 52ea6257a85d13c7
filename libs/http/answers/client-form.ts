import type { IncomingMessage } from 'node:http';
import { messageErrorType } from '#libs/providers/messages/error-type.ts';

/** The form in which clients of a path expect errors and streams: that of OpenAI's chat, or of Anthropic's messages. */
export type ClientForm = 'chat' | 'messages';

/** The form for this request, also before its route and caller are known. */
export const findClientForm = ({ url = '' }: IncomingMessage): ClientForm =>
  url.startsWith('/v1/messages') ? 'messages' : 'chat';

type ErrorText = { message: string; code: string | null };

/** An overloaded server answers 529 there, and clients wait before they try again. */
export const messageStatus = (status: number): number => (status === 503 ? 529 : status);

/** The status with which a client of this path gets an answer that has `status`. */
export const clientStatus = (request: IncomingMessage, status: number): number =>
  findClientForm(request) === 'messages' ? messageStatus(status) : status;

/** The body of an error with this status in Anthropic's form, and our code, which its clients ignore. */
export const toMessageError = (status: number, { message, code }: ErrorText, requestId: string): object => ({
  type: 'error',
  error: { type: messageErrorType(status), message, code },
  request_id: requestId,
});
