/**
 * Gemini 3 rejects a conversation whose function calls lack the `thoughtSignature` that they were returned with
 * (ai.google.dev/gemini-api/docs/thought-signatures), and OpenAI's format has no field for it. The signature is
 * therefore part of the tool call's ID, which every client sends back. Nothing is stored, and any process can read it.
 *
 *     call_ts<length>_<signature in base64url><the call's own id, if Gemini gave one>
 *     call_tu<length>_<signature's text in base64url><…>      for a signature that is not canonical base64
 *
 * The length marks the end of the signature: its alphabet includes `_` and `-`, so a separator would not work. The ID
 * has only letters, digits, `_` and `-` if the own ID does, which other providers require.
 */
const carrier = /^call_t([su])(\d{1,7})_([A-Za-z0-9_-]*)/;

/** `ownId` is Gemini's own ID, or undefined if it sent none or if another provider made the call. */
type CarriedId = { ownId: string | undefined; signature: string | undefined };

/** The ID for the client. `fallbackId` is used if Gemini sent none and there is no signature. */
export function packCallId({ ownId, signature }: CarriedId, fallbackId: string): string {
  if (signature === undefined || signature === '') return ownId ?? fallbackId;
  const bytes = Buffer.from(signature, 'base64');
  const canonical = bytes.toString('base64') === signature;
  const written = (canonical ? bytes : Buffer.from(signature)).toString('base64url');
  // Without an own ID, parallel calls with one signature would share an ID. The fallback distinguishes them.
  return `call_t${canonical ? 's' : 'u'}${written.length}_${written}${ownId ?? fallbackId}`;
}

/** Reads an ID that a client sends back, which can be from another provider. */
export function unpackCallId(id: string): CarriedId {
  const [, kind, digits, rest = ''] = carrier.exec(id) ?? [];
  const length = Number(digits);
  if (kind === undefined || rest.length < length) return { ownId: ownIdOf(id), signature: undefined };
  const bytes = Buffer.from(rest.slice(0, length), 'base64url');
  const tail = id.slice(`call_t${kind}${digits}_`.length + length);
  return { ownId: ownIdOf(tail), signature: bytes.toString(kind === 's' ? 'base64' : 'utf8') };
}

/** IDs in the formats of the gateway and of other providers have no meaning for Gemini. */
function ownIdOf(id: string): string | undefined {
  return id === '' || /^(call_|toolu_|tooluse_|chatcmpl-)/.test(id) ? undefined : id;
}

/** The value that Google documents for calls of another model, because a conversation can switch models. */
export const foreignSignature = 'skip_thought_signature_validator';

/** Gemini 3 and later check signatures. Earlier models reject made-up ones. */
export const checksSignatures = (model: string): boolean => /gemini-(?:[3-9]|\d{2,})/.test(model);
