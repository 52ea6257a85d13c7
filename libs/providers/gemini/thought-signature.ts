/**
 * Gemini 3 refuses a conversation whose function calls come back without the `thoughtSignature` that they were made with
 * (ai.google.dev/gemini-api/docs/thought-signatures), and OpenAI's shape has no room for one. So it travels inside the
 * tool call's id, which every client repeats: nothing is kept here, and another process, or one restarted, can read it.
 *
 *     call_ts<length>_<signature in base64url><the call's own id, if Gemini gave one>
 *     call_tu<length>_<signature's text in base64url><…>      for a signature that is no canonical base64
 *
 * The length says where the signature ends: its alphabet holds `_` and `-`, so no separator could. The whole id holds only
 * letters, digits, `_` and `-` when the own id does, as other providers ask of ids.
 */
const carrier = /^call_t([su])(\d{1,7})_([A-Za-z0-9_-]*)/;

/** `ownId` is Gemini's own, or undefined where it gave none (or another provider made the call). */
type CarriedId = { ownId: string | undefined; signature: string | undefined };

/** The id that the client gets. `fallbackId` is used where Gemini gave none and there is no signature. */
export function packCallId({ ownId, signature }: CarriedId, fallbackId: string): string {
  if (signature === undefined || signature === '') return ownId ?? fallbackId;
  const bytes = Buffer.from(signature, 'base64');
  const canonical = bytes.toString('base64') === signature;
  const written = (canonical ? bytes : Buffer.from(signature)).toString('base64url');
  // Without an own id, parallel calls of one signature would share an id: the fallback tells them apart.
  return `call_t${canonical ? 's' : 'u'}${written.length}_${written}${ownId ?? fallbackId}`;
}

/** Reads an id that a client sends back, ours or anybody's. */
export function unpackCallId(id: string): CarriedId {
  const [, kind, digits, rest = ''] = carrier.exec(id) ?? [];
  const length = Number(digits);
  if (kind === undefined || rest.length < length) return { ownId: ownIdOf(id), signature: undefined };
  const bytes = Buffer.from(rest.slice(0, length), 'base64url');
  const tail = id.slice(`call_t${kind}${digits}_`.length + length);
  return { ownId: ownIdOf(tail), signature: bytes.toString(kind === 's' ? 'base64' : 'utf8') };
}

/** Ids in the forms that we and other providers make are none of Gemini's: they mean nothing to it. */
function ownIdOf(id: string): string | undefined {
  return id === '' || /^(call_|toolu_|tooluse_|chatcmpl-)/.test(id) ? undefined : id;
}

/** What Google documents for calls that another model made: a conversation may change models on the way. */
export const foreignSignature = 'skip_thought_signature_validator';

/** Gemini 3 and later check signatures; before, a made-up one would be refused. */
export const checksSignatures = (model: string): boolean => /gemini-(?:[3-9]|\d{2,})/.test(model);
