import { hashText } from '../../model/hash.ts';
import { Refusal, type Call, type Received } from '../wire-format.ts';

/**
 * A call that asks no model: it fails and waits like one by the name it is given, and does its work only when it is
 * answered, so that a refused attempt has changed nothing. `act` may throw Refusal.
 */
export function action(received: Received, name: string, act: () => unknown): Call {
  return {
    model: name,
    hash: hashText(`${received.method} ${received.path}\n${received.text}`),
    user: undefined,
    stream: false,
    body: () => JSON.stringify(act()),
    frames: () => [],
  };
}

export function notFound(message: string, param: string | null): never {
  throw new Refusal({ status: 404, message, type: 'invalid_request_error', param, code: null });
}
