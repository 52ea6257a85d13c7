import { createPublicKey, hash, sign, verify, type KeyObject } from 'node:crypto';

// Signed notes with Ed25519, in the format of https://c2sp.org/signed-note.

/** A key that checks signatures. Name and ID identify it. */
export type NoteVerifier = { name: string; id: string; publicKey: KeyObject };

/** A key that makes signatures. */
export type NoteSigner = NoteVerifier & { privateKey: KeyObject };

const ed25519 = Buffer.of(1);
const idBytes = 4;

export function createSigner(name: string, privateKey: KeyObject): NoteSigner {
  const publicKey = createPublicKey(privateKey);
  return { name, id: keyId(name, encodeKey(publicKey)), publicKey, privateKey };
}

/** The text from which others make a verifier, such as `example.com/log+1a2b3c4d+AbC…`. */
export const verifierText = ({ name, id, publicKey }: NoteVerifier): string =>
  `${name}+${id}+${encodeKey(publicKey).toString('base64')}`;

/** Throws for a text that is not the text of an Ed25519 verifier. */
export function parseVerifier(text: string): NoteVerifier {
  const [, name = '', id = '', encoded = ''] =
    /^([^+\s]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/]{44})$/.exec(text.trim()) ?? [];
  const key = Buffer.from(encoded, 'base64');
  if (key.length !== 33 || key[0] !== 1 || keyId(name, key) !== id) {
    throw new Error('This is not the verifier key of a signed note, which looks like example.com/log+1a2b3c4d+AbC…');
  }
  const jwk = { kty: 'OKP', crv: 'Ed25519', x: key.subarray(1).toString('base64url') };
  return { name, id, publicKey: createPublicKey({ key: jwk, format: 'jwk' }) };
}

/** The type of the signature, and the 32 bytes of the key. */
const encodeKey = (publicKey: KeyObject): Buffer =>
  Buffer.concat([ed25519, Buffer.from(publicKey.export({ format: 'jwk' }).x ?? '', 'base64url')]);

const keyId = (name: string, encodedKey: Buffer): string =>
  hash('sha256', Buffer.concat([Buffer.from(`${name}\n`), encodedKey]), 'buffer')
    .subarray(0, idBytes)
    .toString('hex');

/** Signs a text, which ends with a line feed, with every key. */
export function signNote(text: string, signers: readonly NoteSigner[]): string {
  const lines = signers.map(({ name, id, privateKey }) => {
    const signature = sign(null, Buffer.from(text), privateKey);
    return `— ${name} ${Buffer.concat([Buffer.from(id, 'hex'), signature]).toString('base64')}\n`;
  });
  return `${text}\n${lines.join('')}`;
}

/**
 * Returns the text of a note that at least one of the verifiers has signed. Signatures of other keys are ignored. Throws if
 * there is none, or if one by a known key is wrong.
 */
export function openNote(note: string, verifiers: readonly NoteVerifier[]): string {
  const end = note.lastIndexOf('\n\n');
  const text = note.slice(0, end + 1);
  const lines = note.slice(end + 2).split('\n');
  if (end === -1 || lines.pop() !== '') throw new Error('This is not a signed note.');
  let isSigned = false;
  for (const line of lines) {
    const [, name, encoded = ''] = /^— ([^+\s]+) ([A-Za-z0-9+/]+={0,2})$/.exec(line) ?? [];
    if (name === undefined) throw new Error('This is not a signed note: a line of its signatures is malformed.');
    const bytes = Buffer.from(encoded, 'base64');
    const id = bytes.subarray(0, idBytes).toString('hex');
    const known = verifiers.find((verifier) => verifier.name === name && verifier.id === id);
    if (known === undefined) continue;
    if (!verify(null, Buffer.from(text), known.publicKey, bytes.subarray(idBytes))) {
      throw new Error(`The signature of ${name} is wrong.`);
    }
    isSigned = true;
  }
  if (isSigned) return text;
  throw new Error(`The note has no signature by ${verifiers.map(({ name, id }) => `${name}+${id}`).join(' or ')}.`);
}
