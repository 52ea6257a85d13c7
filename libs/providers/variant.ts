import { GatewayError } from '#libs/kernel/errors.ts';
import { memberValue, rememberedBytesMin, type MemberEdits } from '#libs/kernel/json/json-members.ts';
import type { Call, ProviderError, StreamDecoder } from './provider.ts';
import type { FinishReason } from './turns/answer.ts';
import { type Json, asText, parseJson, toRecord, toRecords } from './turns/json-value.ts';

/**
 * Converts an answer or a chunk to OpenAI's format. Returns the same object if nothing changes, null to drop the chunk.
 */
export type Amend = (answer: Json, call: Call) => Json | null;

/** How an OpenAI-compatible provider differs from OpenAI. All other members pass byte for byte. */
export type Variant = {
  /** Whether it knows the role `developer`; otherwise such messages are sent as `system`. */
  developerRole?: boolean;
  /** Top-level members that have another name there. */
  renames?: Readonly<Record<string, string>>;
  /** Values that are written differently there, by member. */
  values?: Readonly<Record<string, Readonly<Record<string, string>>>>;
  /** Members that the provider rejects and does not need. */
  removes?: readonly string[];
  /** Each rewrites the raw text of `messages` if the request contains its hint in quotes. */
  messages?: readonly { hint: string; rewrite: (text: string) => string }[];
  /** Finish reasons that OpenAI does not have; `failure`: the answer is an error. */
  finishReasons?: Readonly<Record<string, FinishReason | 'failure'>>;
  /** It sends usage in chunks with choices too. OpenAI's clients expect it in a last chunk without choices. */
  usageBesideChoices?: boolean;
  /** One per stream or whole answer. Chunks are parsed only if their text contains one of the hints. */
  answers?: { hints: readonly string[]; open: () => Amend };
  /** The changes that its functions make, for docs/providers.md. */
  notes?: readonly string[];
};

/** Describes the variant for docs/providers.md. */
export function describeVariant(variant: Variant): string[] {
  const { developerRole, renames = {}, values = {}, removes = [], finishReasons = {}, notes = [] } = variant;
  const arrows = (names: Readonly<Record<string, string>>): string[] =>
    Object.entries(names).map(([from, to]) => `\`${from}\` → \`${to}\``);
  const ends = Object.entries(finishReasons).map(([from, to]) =>
    to === 'failure' ? `end \`${from}\` is an error` : `end \`${from}\` → \`${to}\``,
  );
  return [
    ...(developerRole ? [] : ['`developer` → `system`']),
    ...arrows(renames),
    ...Object.entries(values).flatMap(([name, texts]) => arrows(texts).map((arrow) => `\`${name}\` ${arrow}`)),
    ...removes.map((name) => `no \`${name}\``),
    ...ends,
    ...(variant.usageBesideChoices ? ['usage in a separate chunk'] : []),
    ...notes,
  ];
}

/**
 * The edits that a chat request needs for the variant. The bytes are searched for the relevant words first, and members
 * are read only if one is found. Returns undefined if no edit is needed.
 */
export function variantEdits(variant: Variant, call: Call): MemberEdits | undefined {
  const { developerRole = false, renames = {}, values = {}, removes = [], messages = [] } = variant;
  const edits: Record<string, string | undefined> = {};
  for (const [name, other] of Object.entries(renames)) {
    const value = written(call, name);
    if (value === undefined) continue;
    edits[name] = undefined;
    if (value !== 'null') edits[other] = value;
  }
  for (const [name, texts] of Object.entries(values)) {
    const value = Object.keys(texts).some((text) => mentions(call, text)) ? written(call, name) : undefined;
    const text: unknown = value === undefined ? undefined : JSON.parse(value);
    if (typeof text === 'string' && Object.hasOwn(texts, text)) edits[name] = JSON.stringify(texts[text]);
  }
  for (const name of removes) if (written(call, name) !== undefined) edits[name] = undefined;
  const rewrites = [
    ...(!developerRole && mentions(call, 'developer') ? [developerToSystem] : []),
    ...messages.flatMap(({ hint, rewrite }) => (mentions(call, hint) ? [rewrite] : [])),
  ];
  const before = rewrites.length > 0 ? written(call, 'messages') : undefined;
  if (before !== undefined) {
    const after = rewrites.reduce((text, rewrite) => rewrite(text), before);
    if (after !== before) edits['messages'] = after;
  }
  return Object.keys(edits).length > 0 ? edits : undefined;
}

/** Inside a string the quotes would be escaped, so only a member of a message matches. */
const developerToSystem = (text: string): string => text.replaceAll(/("role"\s*:\s*)"developer"/g, '$1"system"');

const quoted = new Map<string, Buffer>();

/** Whether the request contains the word in quotes. */
function mentions({ body, edits }: Call, word: string): boolean {
  let bytes = quoted.get(word);
  if (bytes === undefined) quoted.set(word, (bytes = Buffer.from(`"${word}"`)));
  if (body.includes(bytes)) return true;
  return Object.values(edits).some((value) => value?.includes(`"${word}"`) === true);
}

/** The raw value that will be sent for a member, with edits; undefined if there is none. Does not parse the body. */
export function written(call: Call, name: string): string | undefined {
  if (name in call.edits) return call.edits[name];
  // Searching a small body for the name is faster than a scan; the members of a large one are known.
  return call.body.length >= rememberedBytesMin || mentions(call, name)
    ? memberValue(call.body, name)?.toString()
    : undefined;
}

/** Whether answers of the variant are ever changed. */
export const amendsAnswers = ({ finishReasons, answers, usageBesideChoices = false }: Variant): boolean =>
  finishReasons !== undefined || answers !== undefined || usageBesideChoices;

/** Converts a whole answer; returns the same object if nothing changes. Throws provider_failed for a failure. */
export function amendWhole(variant: Variant, body: unknown, call: Call): unknown {
  if (!Array.isArray(toRecord(body)['choices'])) return body;
  const amended = variant.answers?.open()(toRecord(body), call) ?? toRecord(body);
  const failure = failureIn(variant, amended);
  if (failure) throw new GatewayError('provider_failed', failure.error.code, failure.error.message);
  return withContent(withReasons(variant, amended));
}

/** A stream in which only chunks with one of the variant's words are changed. */
export function openAmendedStream(
  variant: Variant,
  call: Call,
  decodeError: (status: number, body: string) => ProviderError,
): StreamDecoder {
  const amend = variant.answers?.open();
  const hints = [
    ...(variant.answers?.hints ?? []),
    ...Object.keys(variant.finishReasons ?? {}).map((reason) => `"${reason}"`),
    ...(variant.usageBesideChoices ? ['"usage":', '"finish_reason":"', '"finish_reason": "'] : []),
  ];
  let ended = false;
  return {
    push: ({ event, data }) => {
      if (data === '[DONE]') return { payloads: [], done: true };
      if (event === 'error') return { payloads: [], error: decodeError(200, data) };
      if (!hints.some((hint) => data.includes(hint))) return { payloads: [data] };
      const chunk = parse(data);
      // An error, or not a JSON object: the core handles both.
      if (chunk === undefined || (chunk['error'] !== undefined && chunk['error'] !== null)) return { payloads: [data] };
      const amended = amend ? amend(chunk, call) : chunk;
      if (amended === null) return { payloads: [] };
      const failure = failureIn(variant, amended);
      if (failure) return { payloads: [], error: failure };
      const named = withReasons(variant, amended);
      const apart = variant.usageBesideChoices ? usageApart(named, ended) : null;
      ended ||= endsIn(named);
      if (apart) return { payloads: apart.map((each) => JSON.stringify(each)) };
      return { payloads: [named === chunk ? data : JSON.stringify(named)] };
    },
  };
}

const endsIn = (chunk: Json): boolean =>
  toRecords(chunk['choices']).some((choice) => asText(choice['finish_reason']) !== undefined);

/** Moves usage into a separate chunk once the answer has ended. Before that it is only an interim count. */
function usageApart(chunk: Json, ended: boolean): Json[] | null {
  const { usage, ...rest } = chunk;
  if (usage === undefined || usage === null || toRecords(chunk['choices']).length === 0) return null;
  const { id, object, created, model } = chunk;
  const alone = { id, object, created, model, choices: [], usage };
  if (endsIn(chunk)) return [rest, alone];
  return ended && toRecords(chunk['choices']).every(saysNothing) ? [alone] : [rest];
}

const saysNothing = ({ delta }: Json): boolean =>
  Object.entries(toRecord(delta)).every(([name, value]) => name === 'role' || value === '' || value === null);

function parse(data: string): Json | undefined {
  const value = parseJson(data);
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : undefined;
}

function failureIn({ finishReasons = {} }: Variant, answer: Json): ProviderError | undefined {
  for (const choice of toRecords(answer['choices'])) {
    const reason = asText(choice['finish_reason']);
    if (reason === undefined || !Object.hasOwn(finishReasons, reason) || finishReasons[reason] !== 'failure') continue;
    const message = asText(toRecord(choice['error'])['message']) ?? `The provider ended its answer with "${reason}".`;
    return { error: { message, type: 'server_error', param: null, code: 'upstream_error' } };
  }
  return undefined;
}

function withReasons({ finishReasons = {} }: Variant, answer: Json): Json {
  const choices = toRecords(answer['choices']);
  const known = (choice: Json): string | undefined => {
    const reason = asText(choice['finish_reason']);
    return reason !== undefined && Object.hasOwn(finishReasons, reason) ? finishReasons[reason] : undefined;
  };
  if (!choices.some(known)) return answer;
  return {
    ...answer,
    choices: choices.map((choice) => (known(choice) ? { ...choice, finish_reason: known(choice) } : choice)),
  };
}

/** Every message of OpenAI's has `content`, which can be null if there are tool calls. */
function withContent(answer: Json): Json {
  const choices = toRecords(answer['choices']);
  const lacks = (choice: Json): boolean => !('content' in toRecord(choice['message']));
  if (!choices.some(lacks)) return answer;
  return {
    ...answer,
    choices: choices.map((choice) =>
      lacks(choice) ? { ...choice, message: { ...toRecord(choice['message']), content: null } } : choice,
    ),
  };
}
