import type { IncomingMessage } from 'node:http';
import { toGoogleError } from '#libs/providers/generate-content/google-error.ts';

/** The form in which clients of a path expect errors and streams: that of OpenAI's chat, of Anthropic's messages, or Google's. */
export type ClientForm = 'chat' | 'messages' | 'google';

/** The form for this request, also before its route and caller are known. */
export const findClientForm = ({ url = '' }: IncomingMessage): ClientForm =>
  url.startsWith('/v1beta') ? 'google' : url.startsWith('/v1/messages') ? 'messages' : 'chat';

/** The types of Anthropic's errors (platform.claude.com/docs, "Errors"), by status. */
const messageErrorTypes: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  402: 'billing_error',
  403: 'permission_error',
  404: 'not_found_error',
  412: 'billing_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  504: 'timeout_error',
  529: 'overloaded_error',
};

type ErrorText = { message: string; param: string | null; code: string | null };

/** An overloaded server answers 529 there, and clients wait before they try again. */
export const messageStatus = (status: number): number => (status === 503 ? 529 : status);

/** The body of an error with this status in Anthropic's form, and our code, which its clients ignore. */
export const toMessageError = (status: number, { message, code }: ErrorText, requestId: string): object => ({
  type: 'error',
  error: { type: messageErrorTypes[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error'), message, code },
  request_id: requestId,
});

/** The body of an error in the form of its client. `body` has OpenAI's form; `status` is that of this form. */
export function toClientError(form: ClientForm, status: number, body: { error: ErrorText }, requestId: string): object {
  switch (form) {
    case 'messages':
      return toMessageError(status, body.error, requestId);
    case 'google':
      return toGoogleError(status, body.error);
    case 'chat':
      return body;
  }
}
