import { RE2JS } from 're2js';
import { hasCredentialName, looksRandom } from '#libs/kernel/logging/credential-shapes.ts';
import { scrub } from '#libs/kernel/logging/scrub.ts';
import { tokenizeJson, type JsonToken } from './json-tokens.ts';

const redacted = '[redacted]';
/**
 * JSON in strings of JSON, such as the arguments of tool calls, is parsed to this depth. Below it, escapes are decoded.
 */
const depthMax = 5;
/** A replacement can complete another match, so a text is searched again while it changes. */
const roundsMax = 4;
/** No credential is shorter than this. */
const credentialCharsMin = 8;

type Search = { scrubs: boolean; rules: readonly Rule[] };
type Rule = { pattern: RE2JS; isGreedy: boolean; isAnchored: boolean };

/**
 * Returns a function that redacts recorded bodies: credentials, and every match of one of the RE2 `rules`. The strings
 * of a body are searched in decoded form, because a line break before a number is `\n4111` in JSON, and any character
 * can be written like `\u0034`. In the result, no decoded string, member name or number has a match, apart from
 * `[redacted]`.
 */
export function createRedaction(rules: readonly string[]): (body: string) => string {
  const compiled = rules.map((rule): Rule => {
    const pattern = RE2JS.compile(rule);
    return {
      pattern,
      // The rule matches its own replacement, so a text with a match is replaced as a whole.
      isGreedy: pattern.test(redacted),
      isAnchored: /[$^]|\\[AzB]/.test(rule.replaceAll('[^', '[')),
    };
  });
  const everything: Search = { scrubs: true, rules: compiled };

  /**
   * Returns the searches that can have a match in one of the texts. One search through all of them together is many
   * times faster and finds something if a search through one of them would, because only an anchor can distinguish the
   * end of a text from a line break.
   */
  const narrow = (texts: string): Search => ({
    scrubs: scrub(texts, [], Number.POSITIVE_INFINITY) !== texts,
    rules: compiled.filter(({ pattern, isAnchored }) => isAnchored || pattern.test(texts)),
  });

  const cleanString = (text: string, depth: number, search: Search): string =>
    untilStable(text, (left) => {
      const isNested = depth < depthMax && /^\s*[[{"]/.test(left) && isJson(left);
      return cleanEscaped(clean(isNested ? cleanJson(left, depth + 1, everything) : left, search));
    });

  /** Everything except strings and numbers stays unchanged. */
  const cleanJson = (json: string, depth: number, search: Search): string => {
    let result = '';
    let name: string | null = null;
    for (const token of tokenizeJson(json)) {
      if (token.value === null) {
        result += search.rules.length === 0 ? token.text : cleanNumbers(token.text, search);
        if (hasContent(token.text)) name = null;
        continue;
      }
      const { value } = token;
      const isCredential = !token.isName && name !== null && hasCredentialName(name) && looksRandom(value);
      const left = isCredential ? redacted : cleanString(value, depth, search);
      result += left === value ? token.text : JSON.stringify(left);
      name = token.isName ? value : null;
    }
    return result;
  };

  /**
   * A text whose escapes hide a match is replaced by its decoded form. A text with too many escapes is redacted as a
   * whole.
   */
  const cleanEscaped = (text: string): string => {
    let left = text;
    for (let round = 0; round <= depthMax; round += 1) {
      const decoded = decodeEscapes(left);
      if (decoded === left) return text;
      const cleaned = clean(decoded, everything);
      if (cleaned !== decoded) return cleaned;
      left = decoded;
    }
    return redacted;
  };

  /** The text of a stream arrives in pieces. The pieces of one member are also searched together. */
  const cleanEvents = (body: string): string => {
    const events = eventsOf(body);
    const parsed = events.map(({ data }) => (data !== null && isJson(data) ? [...tokenizeJson(data)] : null));
    for (const pieces of piecesByMember(events, parsed)) {
      if (pieces.every(({ value }) => value === pieces[0]?.value)) continue;
      const whole = pieces.map(({ value }) => value).join('');
      const left = cleanString(whole, 0, everything);
      if (left === whole) continue;
      // The first piece gets the rest of all of them.
      for (const [index, piece] of pieces.entries()) piece.text = JSON.stringify(index === 0 ? left : '');
    }
    const texts = parsed.map((tokens) => tokens?.map(({ text }) => text).join('') ?? null);
    const search = narrow(
      events.map(({ before, data }, at) => `${before}\n${texts[at] == null ? data : textsIn(texts[at])}`).join('\n'),
    );
    return events
      .map(({ before, data, ending }, at) => {
        if (data === null) return cleanString(before, 0, search) + ending;
        const json = texts[at];
        const text = json == null ? cleanString(data, 0, search) : cleanJson(json, 0, search);
        return before + text.replaceAll('\n', '\ndata: ') + ending;
      })
      .join('');
  };

  return (body) => {
    if (isJson(body)) return cleanJson(body, 0, narrow(textsIn(body)));
    if (/^data:/m.test(body)) return cleanEvents(body);
    const lines = body.split(/(?<=\n)/);
    const text = lines.map((line) => (isJson(line) ? cleanJson(line, 0, everything) : line)).join('');
    return cleanString(text, 0, everything);
  };
}

/** Redacts a text without structure. */
function clean(text: string, { scrubs, rules }: Search): string {
  if (!scrubs && rules.length === 0) return text;
  return untilStable(text, (left) =>
    applyRules(scrubs && left.length >= credentialCharsMin ? scrub(left, [], Number.POSITIVE_INFINITY) : left, rules),
  );
}

function applyRules(text: string, rules: readonly Rule[]): string {
  let left = text;
  for (const { pattern, isGreedy } of rules) {
    if (left === redacted || !pattern.test(left)) continue;
    if (isGreedy) return redacted;
    left = pattern.matcher(left).replaceAll(redacted);
  }
  return left;
}

const cleanNumbers = (text: string, { rules }: Search): string =>
  text.replaceAll(/-?\d[\d.eE+-]*/g, (number) =>
    applyRules(number, rules) === number ? number : JSON.stringify(redacted),
  );

/** Everything in a JSON text that is searched, in decoded form. */
function textsIn(json: string): string {
  const texts: string[] = [];
  for (const { text, value } of tokenizeJson(json)) texts.push(value ?? text);
  return texts.join('\n');
}

/** Applies `change` until the text no longer changes. A text that keeps changing, or grows, is redacted as a whole. */
function untilStable(text: string, change: (text: string) => string): string {
  let left = text;
  for (let round = 0; round < roundsMax; round += 1) {
    const next = change(left);
    if (next === left) return left;
    if (next.length > 4 * text.length + 1_000) break;
    left = next;
  }
  return redacted;
}

const escapes: Readonly<Record<string, string>> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' };

const decodeEscapes = (text: string): string =>
  text.includes('\\')
    ? text.replaceAll(/\\(?:u([\da-fA-F]{4})|(["\\/bfnrt]))/g, (_all, code?: string, letter = '') =>
        code === undefined
          ? (escapes[letter as string] ?? (letter as string))
          : String.fromCharCode(parseInt(code, 16)),
      )
    : text;

/** Members that identify which of several texts an event continues. */
const identityMembers =
  /"(?:index|output_index|content_index|summary_index|item_id|type)"\s*:\s*(?:"[^"]{0,100}"|\d+)/g;

/** The strings of events, those that continue the same text together. */
function piecesByMember(
  events: readonly StreamEvent[],
  parsed: readonly (readonly JsonToken[] | null)[],
): Iterable<JsonToken[]> {
  const members = new Map<string, JsonToken[]>();
  for (const [index, tokens] of parsed.entries()) {
    const identity = [...(events[index]?.data ?? '').matchAll(identityMembers)].join(' ');
    for (const token of tokens ?? []) {
      if (token.value === null || token.isName) continue;
      const member = `${identity} ${token.path}`;
      const pieces = members.get(member);
      if (pieces === undefined) members.set(member, [token]);
      else pieces.push(token);
    }
  }
  return members.values();
}

type StreamEvent = { before: string; data: string | null; ending: string };

/** The lines of an event stream. Consecutive `data:` lines are one text, as the format requires. */
function eventsOf(body: string): StreamEvent[] {
  const events: StreamEvent[] = [];
  for (const line of body.split(/(?<=\n)/)) {
    const [, text = '', ending = ''] = /^(.*?)(\r?\n?)$/s.exec(line) ?? [];
    const [, before, data = ''] = /^(data: ?)(.*)$/s.exec(text) ?? [];
    const last = events.at(-1);
    if (before === undefined) events.push({ before: text, data: null, ending });
    else if (last?.data == null) events.push({ before, data, ending });
    else {
      last.data += `\n${data}`;
      last.ending = ending;
    }
  }
  return events;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Whether a text between two strings has more than the colon between a name and its value. */
const hasContent = (between: string): boolean => /[^\s:]/.test(between);
