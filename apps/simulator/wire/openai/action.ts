import { hashText } from '../../model/hash.ts';
import { Refusal, type Call, type Received } from '../wire-format.ts';

/**
 * A call without a model's answer. The given name selects faults and latency. `act` runs only when the call is answered, so
 * that a rejected attempt does not change anything. `act` can throw Refusal.
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
