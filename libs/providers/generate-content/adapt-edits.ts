import { memberValue, type MemberEdits } from '#libs/kernel/json/json-members.ts';
import { parseJson, toRecord } from '../turns/json-value.ts';

/** The members of generationConfig, by their names in chat completions. */
const configNames: Readonly<Record<string, readonly [camel: string, snake: string]>> = {
  temperature: ['temperature', 'temperature'],
  top_p: ['topP', 'top_p'],
  top_k: ['topK', 'top_k'],
  max_tokens: ['maxOutputTokens', 'max_output_tokens'],
  max_completion_tokens: ['maxOutputTokens', 'max_output_tokens'],
  stop: ['stopSequences', 'stop_sequences'],
  seed: ['seed', 'seed'],
  presence_penalty: ['presencePenalty', 'presence_penalty'],
  frequency_penalty: ['frequencyPenalty', 'frequency_penalty'],
  n: ['candidateCount', 'candidate_count'],
};

/** The core reads them from the path. */
const inPath = new Set(['model', 'stream', 'stream_options']);

/**
 * A config's edits for a body of generateContent: parameters with the names of chat completions are members of its
 * generationConfig, so that one config works for clients of each format.
 */
export function adaptEdits(body: Buffer, edits: MemberEdits): MemberEdits {
  const names = Object.keys(edits);
  const own = Object.fromEntries(
    Object.entries(edits).filter(([name]) => !inPath.has(name) && !Object.hasOwn(configNames, name)),
  );
  if (!names.some((name) => Object.hasOwn(configNames, name))) return own;
  const spelling = ['generationConfig', 'generation_config'].find(
    (name) => own[name] !== undefined || (!(name in own) && memberValue(body, name) !== undefined),
  );
  const member = spelling ?? 'generationConfig';
  const written = own[member] ?? memberValue(body, member)?.toString() ?? '{}';
  const config = new Map(Object.entries(toRecord(parseJson(written))));
  for (const name of names) {
    const [camel, snake] = configNames[name] ?? [];
    if (camel === undefined || snake === undefined) continue;
    config.delete(snake);
    config.delete(camel);
    const raw = edits[name];
    const value: unknown = raw === undefined ? undefined : parseJson(raw);
    if (value !== undefined) config.set(camel, name === 'stop' ? [value].flat() : value);
  }
  return { ...own, [member]: JSON.stringify(Object.fromEntries(config)) };
}
