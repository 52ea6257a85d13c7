/**
 * Gemini 3 rejects a conversation whose function calls lack the `thoughtSignature` that they were returned with
 * (ai.google.dev/gemini-api/docs/thought-signatures), and OpenAI's format has no field for it. So it is part of the tool
 * call's id, which every client sends back. Nothing is stored, and any process can read it.
 *
 *     call_ts<length>_<signature in base64url><the call's own id, if Gemini gave one>
 *     call_tu<length>_<signature's text in base64url><…>      for a signature that is not canonical base64
 *
 * The length says where the signature ends: its alphabet includes `_` and `-`, so a separator would not work. The id has only
 * letters, digits, `_` and `-` if the own id does, which other providers require.
 */
const carrier = /^call_t([su])(\d{1,7})_([A-Za-z0-9_-]*)/;

/** `ownId` is Gemini's own id, or undefined if it gave none or if another provider made the call. */
type CarriedId = { ownId: string | undefined; signature: string | undefined };

/** The id for the client. `fallbackId` is used if Gemini gave none and there is no signature. */
export function packCallId({ ownId, signature }: CarriedId, fallbackId: string): string {
  if (signature === undefined || signature === '') return ownId ?? fallbackId;
  const bytes = Buffer.from(signature, 'base64');
  const canonical = bytes.toString('base64') === signature;
  const written = (canonical ? bytes : Buffer.from(signature)).toString('base64url');
  // Without an own id, parallel calls with one signature would share an id. The fallback keeps them apart.
  return `call_t${canonical ? 's' : 'u'}${written.length}_${written}${ownId ?? fallbackId}`;
}

/** Reads an id that a client sends back, which may be from another provider. */
export function unpackCallId(id: string): CarriedId {
  const [, kind, digits, rest = ''] = carrier.exec(id) ?? [];
  const length = Number(digits);
  if (kind === undefined || rest.length < length) return { ownId: ownIdOf(id), signature: undefined };
  const bytes = Buffer.from(rest.slice(0, length), 'base64url');
  const tail = id.slice(`call_t${kind}${digits}_`.length + length);
  return { ownId: ownIdOf(tail), signature: bytes.toString(kind === 's' ? 'base64' : 'utf8') };
}

/** Ids in the formats of the gateway and of other providers mean nothing to Gemini. */
function ownIdOf(id: string): string | undefined {
  return id === '' || /^(call_|toolu_|tooluse_|chatcmpl-)/.test(id) ? undefined : id;
}

/** The value that Google documents for calls of another model: a conversation may switch models. */
export const foreignSignature = 'skip_thought_signature_validator';

/** Gemini 3 and later check signatures. Earlier models reject made-up ones. */
export const checksSignatures = (model: string): boolean => /gemini-(?:[3-9]|\d{2,})/.test(model);
