import { hashText } from '../../model/hash.ts';
import { Refusal, type Call, type Received } from '../wire-format.ts';

/**
 * A call without a model's answer. Faults and latency apply by the given name, and `act` runs only when the call is answered,
 * so that a rejected attempt changes nothing. `act` may throw Refusal.
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
