import { randomBytes } from 'node:crypto';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import type { Call } from '../provider.ts';
import { type Json, asText, toRecords } from '../turns/json-value.ts';
import { readSignature, wrappedPrefix, wrapSignature } from '../turns/signatures.ts';

/** Who signed reasoning whose `encrypted_content` has no other author. */
const ownSigner = 'openai-responses';

/** How the signature of a block begins that is not shown. */
const redactedMark = 'redacted.';

/** An item of reasoning as a block of an earlier answer. */
export function readReasoning(item: Json): Json {
  const thinking = [...toRecords(item['summary']), ...toRecords(item['content'])]
    .map(({ text }) => asText(text) ?? '')
    .join('\n\n');
  const encrypted = asText(item['encrypted_content']);
  // Without a signature, no provider can accept it as its own.
  if (encrypted === undefined) return { type: 'thinking', thinking, signer: 'unknown' };
  const { signer, signature } = readSignature(ownSigner, encrypted);
  return signature.startsWith(redactedMark)
    ? { type: 'redacted_thinking', data: signature.slice(redactedMark.length), signer }
    : { type: 'thinking', thinking, signer, ...(signature === '' ? {} : { signature }) };
}

/**
 * An item of reasoning. It always has `encrypted_content`, because that names the author, who alone gets it back; OpenAI has it
 * only on request.
 */
export const encodeReasoning = (
  id: string,
  signer: string | undefined,
  { thinking = '', signature = '', data }: { thinking?: string; signature?: string; data?: string },
): Json => ({
  id,
  type: 'reasoning',
  summary: thinking === '' ? [] : [{ type: 'summary_text', text: thinking }],
  encrypted_content: wrapSignature(ownSigner, signer, data === undefined ? signature : `${redactedMark}${data}`),
});

/** A new ID with this prefix (`resp`, `msg`). */
export const newId = (prefix: string): string => `${prefix}_${randomBytes(24).toString('hex')}`;

const mark = Buffer.from(`"${wrappedPrefix}`);
/** An escape could hide the mark. The check of stored objects relies on every such item being found (named-objects.ts). */
const escape = Buffer.from(String.raw`\u`);

/** Whether an item is reasoning that another provider has signed. It never reaches a provider with the Responses API. */
export const isForeignReasoning = ({ type, encrypted_content: encrypted }: Json): boolean =>
  type === 'reasoning' && asText(encrypted)?.startsWith(wrappedPrefix) === true;

/**
 * The call without reasoning that another provider has signed, which OpenAI would reject: a conversation can move between
 * models. null: it has none, so that its bytes pass.
 */
export function withoutForeignReasoning(call: Call): Call | null {
  const edited = call.edits['input'];
  if (edited === undefined && 'input' in call.edits) return null;
  const bytes = edited === undefined ? call.body : Buffer.from(edited);
  if (!bytes.includes(mark) && !bytes.includes(escape)) return null;
  const list = edited === undefined ? memberValue(call.body, 'input') : bytes;
  const items = JSON.parse(list?.toString() ?? 'null') as unknown;
  if (!Array.isArray(items)) return null;
  const records = toRecords(items);
  const kept = items.filter((_, index) => !isForeignReasoning(records[index] ?? {}));
  return kept.length === items.length ? null : { ...call, edits: { ...call.edits, input: JSON.stringify(kept) } };
}
