import type { Usage } from '#libs/prices/usage.ts';
import { asRecord, readUsage } from '../usage.ts';
import { RepeatedShape } from './repeated-shape.ts';

/** The kind of one payload. `usage` is the chunk that contains nothing else. */
export type PayloadView = 'chunk' | 'usage' | 'error' | 'unreadable';

export type StreamMeter = {
  /** Reads a copy of the payload; the text itself is passed on unchanged. */
  read: (payload: string) => PayloadView;
  usage: () => Usage | null;
  model: () => string | null;
  finishReason: () => string | null;
  /** Whether there was at least one choice, and every choice was finished. */
  allFinished: () => boolean;
  /** How many characters the choices have so far: text, reasoning and the arguments of calls. */
  chars: () => number;
  /** A closing usage chunk made from other chunks, when the provider sent none; otherwise null. */
  missingUsageChunk: () => string | null;
};

/** Meters one stream of chunks in OpenAI's format. */
export function createStreamMeter(): StreamMeter {
  const open = new Set<number>();
  const finished = new Set<number>();
  const shape = new RepeatedShape();
  let usage: Usage | null = null;
  let usageHolder: Readonly<Record<string, unknown>> | null = null;
  let usageChunkSeen = false;
  let tier: unknown;
  let chars = 0;
  let model: string | null = null;
  let finishReason: string | null = null;

  const readChoice = (choice: unknown): void => {
    const { index, finish_reason: reason, delta, text } = asRecord(choice);
    chars += charsOf(delta ?? text);
    const key = typeof index === 'number' ? index : 0;
    if (typeof reason !== 'string' || reason === '') {
      if (!finished.has(key)) open.add(key);
      return;
    }
    open.delete(key);
    finished.add(key);
    if (key === 0) finishReason = reason;
  };

  return {
    read: (payload) => {
      const repeated = shape.findText(payload);
      if (repeated !== null) {
        chars += repeated.length;
        return 'chunk';
      }
      let parsed: unknown;
      try {
        parsed = JSON.parse(payload);
      } catch {
        return 'unreadable';
      }
      if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return 'unreadable';
      const chunk = parsed as Record<string, unknown>;
      if (chunk['error'] !== undefined && chunk['error'] !== null) return 'error';
      if (typeof chunk['model'] === 'string' && chunk['model'] !== '') model = chunk['model'];
      const { choices } = chunk;
      const empty = Array.isArray(choices) && choices.length === 0;
      if (Array.isArray(choices)) for (const choice of choices) readChoice(choice);
      tier = chunk['service_tier'] ?? tier;
      const found = readUsage(chunk['usage'], tier);
      if (found === null) {
        const text = onlyText(choices);
        if (text !== null) shape.learn(payload, text);
        return 'chunk';
      }
      usage = found;
      usageHolder = chunk;
      usageChunkSeen ||= empty;
      return empty ? 'usage' : 'chunk';
    },
    usage: () => usage,
    chars: () => chars,
    model: () => model,
    finishReason: () => finishReason,
    allFinished: () => open.size === 0 && finished.size > 0,
    missingUsageChunk: () => {
      if (usageChunkSeen || usageHolder === null) return null;
      const { id, object, created, model: name, usage: counts } = usageHolder;
      return JSON.stringify({ id, object, created, model: name, choices: [], usage: counts });
    },
  };
}

/** The text of a chunk that has one choice, which is not finished, with a text and nothing else; null for others. */
function onlyText(choices: unknown): string | null {
  if (!Array.isArray(choices) || choices.length !== 1) return null;
  const { finish_reason: reason, delta, text } = asRecord(choices[0]);
  const found = asRecord(delta)['content'] ?? text;
  if (typeof found !== 'string' || (typeof reason === 'string' && reason !== '')) return null;
  return charsOf(delta ?? text) === found.length ? found : null;
}

/** The text of a delta, or of a text completion. */
function charsOf(delta: unknown): number {
  if (typeof delta === 'string') return delta.length;
  const { content, reasoning_content: reasoning, tool_calls: calls } = asRecord(delta);
  let chars = typeof content === 'string' ? content.length : 0;
  if (typeof reasoning === 'string') chars += reasoning.length;
  if (Array.isArray(calls)) {
    for (const call of calls) {
      const { arguments: text } = asRecord(asRecord(call)['function']);
      if (typeof text === 'string') chars += text.length;
    }
  }
  return chars;
}
