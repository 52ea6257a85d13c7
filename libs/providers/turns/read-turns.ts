import type { Call } from '../provider.ts';
import type { TurnRequest } from './turn-request.ts';

const read = new WeakMap<Call, TurnRequest>();

/** The call's request, whatever its dialect; read once. Throws like `decodeRequest` of a dialect. */
export function readTurns(call: Call): TurnRequest {
  let request = read.get(call);
  if (request === undefined) read.set(call, (request = call.dialect.decodeRequest(call.json(), call.model)));
  return request;
}
