import { GatewayError } from '#libs/kernel/errors.ts';
import { memberValue, type MemberEdits } from '#libs/kernel/json-members.ts';
import type { FinishReason } from './chat-chunks.ts';
import { textOf, toRecord, toRecords, type Json } from './json-value.ts';
import type { Call, ProviderError, StreamDecoder } from './provider.ts';

/** Gives an answer or a chunk back as OpenAI would have written it; the same object: unchanged; null: it says nothing. */
export type Amend = (answer: Json, call: Call) => Json | null;

/** What a provider that speaks OpenAI's dialect writes otherwise. Whatever is not named here passes byte for byte. */
export type Dialect = {
  /** Knows the role `developer`; for all others such messages go out as `system`. */
  developerRole?: boolean;
  /** Top-level members under another name there. */
  renames?: Readonly<Record<string, string>>;
  /** Texts that are another one there, by the member whose value they are. */
  values?: Readonly<Record<string, Readonly<Record<string, string>>>>;
  /** Members that the provider refuses, and that say nothing to it. */
  removes?: readonly string[];
  /** Each rewrites the raw text of `messages` where the request holds its hint in quotes. */
  messages?: readonly { hint: string; rewrite: (text: string) => string }[];
  /** Finish reasons that OpenAI does not know; `failure`: the answer is none. */
  finishReasons?: Readonly<Record<string, FinishReason | 'failure'>>;
  /** Tells usage in chunks that hold choices, too: OpenAI's clients expect it in a last chunk without any. */
  usageBesideChoices?: boolean;
  /** One a stream, or one a whole answer. Chunks are parsed only where one of the hints is in their text. */
  answers?: { hints: readonly string[]; open: () => Amend };
  /** What functions of it do, for people to read. */
  notes?: readonly string[];
};

/** The dialect in words, for docs/providers.md. */
export function describeDialect(dialect: Dialect): string[] {
  const { developerRole, renames = {}, values = {}, removes = [], finishReasons = {}, notes = [] } = dialect;
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
    ...(dialect.usageBesideChoices ? ['usage in a chunk of its own'] : []),
    ...notes,
  ];
}

/**
 * The edits that the dialect asks of a chat request, made on its bytes: a search for the words that matter, and a look at
 * the members only where one is found. undefined: nothing to do.
 */
export function dialectEdits(dialect: Dialect, call: Call): MemberEdits | undefined {
  const { developerRole = false, renames = {}, values = {}, removes = [], messages = [] } = dialect;
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

/** Inside a string the quotes would be escaped: only a member of a message looks like this. */
const developerToSystem = (text: string): string => text.replaceAll(/("role"\s*:\s*)"developer"/g, '$1"system"');

const quoted = new Map<string, Buffer>();

/** Whether the word stands between quotes anywhere in the request. */
function mentions({ body, edits }: Call, word: string): boolean {
  let bytes = quoted.get(word);
  if (bytes === undefined) quoted.set(word, (bytes = Buffer.from(`"${word}"`)));
  if (body.includes(bytes)) return true;
  return Object.values(edits).some((value) => value?.includes(`"${word}"`) === true);
}

/** The raw value that will be sent for a member, edits included; undefined: there is none. The body is not parsed for it. */
export function written(call: Call, name: string): string | undefined {
  if (name in call.edits) return call.edits[name];
  return mentions(call, name) ? memberValue(call.body, name)?.toString() : undefined;
}

/** Whether answers of the dialect are ever changed. */
export const amendsAnswers = ({ finishReasons, answers, usageBesideChoices = false }: Dialect): boolean =>
  finishReasons !== undefined || answers !== undefined || usageBesideChoices;

/** A whole answer; the same object where nothing is to be changed. Throws provider_failed for one that is a failure. */
export function amendWhole(dialect: Dialect, body: unknown, call: Call): unknown {
  if (!Array.isArray(toRecord(body)['choices'])) return body;
  const amended = dialect.answers?.open()(toRecord(body), call) ?? toRecord(body);
  const failure = failureIn(dialect, amended);
  if (failure) throw new GatewayError('provider_failed', failure.error.code, failure.error.message);
  return withContent(withReasons(dialect, amended));
}

/** A stream whose chunks pass as they are, but for those that hold one of the dialect's words. */
export function openAmendedStream(
  dialect: Dialect,
  call: Call,
  decodeError: (status: number, body: string) => ProviderError,
): StreamDecoder {
  const amend = dialect.answers?.open();
  const hints = [
    ...(dialect.answers?.hints ?? []),
    ...Object.keys(dialect.finishReasons ?? {}).map((reason) => `"${reason}"`),
    ...(dialect.usageBesideChoices ? ['"usage":', '"finish_reason":"', '"finish_reason": "'] : []),
  ];
  let ended = false;
  return {
    push: ({ event, data }) => {
      if (data === '[DONE]') return { payloads: [], done: true };
      if (event === 'error') return { payloads: [], error: decodeError(200, data) };
      if (!hints.some((hint) => data.includes(hint))) return { payloads: [data] };
      const chunk = parse(data);
      // An error or what is no JSON object: the core judges both.
      if (chunk === undefined || (chunk['error'] !== undefined && chunk['error'] !== null)) return { payloads: [data] };
      const amended = amend ? amend(chunk, call) : chunk;
      if (amended === null) return { payloads: [] };
      const failure = failureIn(dialect, amended);
      if (failure) return { payloads: [], error: failure };
      const named = withReasons(dialect, amended);
      const apart = dialect.usageBesideChoices ? usageApart(named, ended) : null;
      ended ||= endsIn(named);
      if (apart) return { payloads: apart.map((each) => JSON.stringify(each)) };
      return { payloads: [named === chunk ? data : JSON.stringify(named)] };
    },
  };
}

const endsIn = (chunk: Json): boolean =>
  toRecords(chunk['choices']).some((choice) => textOf(choice['finish_reason']) !== undefined);

/** A chunk's usage in a chunk of its own, once the answer has ended; before that it is only a count so far. */
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
  try {
    const value: unknown = JSON.parse(data);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : undefined;
  } catch {
    return undefined;
  }
}

function failureIn({ finishReasons = {} }: Dialect, answer: Json): ProviderError | undefined {
  for (const choice of toRecords(answer['choices'])) {
    const reason = textOf(choice['finish_reason']);
    if (reason === undefined || !Object.hasOwn(finishReasons, reason) || finishReasons[reason] !== 'failure') continue;
    const message = textOf(toRecord(choice['error'])['message']) ?? `The provider ended its answer with "${reason}".`;
    return { error: { message, type: 'server_error', param: null, code: 'upstream_error' } };
  }
  return undefined;
}

function withReasons({ finishReasons = {} }: Dialect, answer: Json): Json {
  const choices = toRecords(answer['choices']);
  const known = (choice: Json): string | undefined => {
    const reason = textOf(choice['finish_reason']);
    return reason !== undefined && Object.hasOwn(finishReasons, reason) ? finishReasons[reason] : undefined;
  };
  if (!choices.some(known)) return answer;
  return {
    ...answer,
    choices: choices.map((choice) => (known(choice) ? { ...choice, finish_reason: known(choice) } : choice)),
  };
}

/** `content` is there in every message of OpenAI's, null beside tool calls. */
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
