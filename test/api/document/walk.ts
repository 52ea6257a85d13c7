import type { OpenApiDocument } from '#libs/http/openapi.ts';

/** One operation of the document, as it is asked. */
export type Step = {
  id: string;
  /** Path parameters. In these, in the query and in bodies, ids of the document (`ws_abc`) stand for those that the server gave. */
  params?: Readonly<Record<string, string>>;
  query?: Readonly<Record<string, string>>;
  headers?: Readonly<Record<string, string>>;
  /** Members that have to be others here than in the example. */
  changes?: object;
  /** The parts of a form, in the place of those of the example. */
  form?: Readonly<Record<string, string | Blob>>;
  /** It is asked again until it is answered, and like this. */
  until?: (answer: Json) => boolean;
  /** What later steps call the record that it makes. */
  name?: string;
  /** What later steps need of the answer, by the names that they have for it. */
  keeps?: (answer: Json) => Record<string, string>;
  /** Members whose texts are others than in the document. */
  varies?: readonly string[];
  /** Members that are others here because of `changes`. */
  differs?: readonly string[];
  /** The record is in another state than in the document: its answer is compared in another step. */
  isUnlike?: true;
};

export type Json = Record<string, unknown>;
type Content = Record<string, { example?: object }>;
export type Documented = { method: string; path: string; example?: object; answer?: object };

/** What the document says of each operation that has an example of its request or its answer, by its id. */
export function documentedOperations({ paths }: OpenApiDocument): Map<string, Documented> {
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): [string, Documented] => {
      const { operationId, requestBody, responses } = operation as {
        operationId: string;
        requestBody?: { content: Content };
        responses: Record<string, { content?: Content }>;
      };
      const example = Object.values(requestBody?.content ?? {})[0]?.example;
      const answer = responses['200']?.content?.['application/json']?.example;
      const said = { ...(example === undefined ? {} : { example }), ...(answer === undefined ? {} : { answer }) };
      return [operationId, { method: method.toUpperCase(), path, ...said }];
    }),
  );
  return new Map(operations);
}

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** An id, as the document has them. */
const inventedId = /^([a-z]+[_-])+(abc|def|ghi|jkl)$/;

/** The ids of the server in the place of those of the document. */
export class Ids {
  readonly #known = new Map<string, string>();

  /** Notes what a name stands for. */
  name(name: string, real: string): void {
    this.#known.set(name, real);
  }

  /** Notes what stands for the ids of a documented answer. The first one stays. */
  learn(documented: unknown, real: unknown): void {
    if (typeof documented === 'string' && typeof real === 'string') {
      if (inventedId.test(documented) && !this.#known.has(documented)) this.#known.set(documented, real);
    } else if (Array.isArray(documented) && Array.isArray(real)) {
      documented.forEach((item, index) => this.learn(item, real[index]));
    } else if (isObject(documented) && isObject(real)) {
      for (const [name, member] of Object.entries(documented)) this.learn(member, real[name]);
    }
  }

  /** The value with the ids of the server. */
  real(value: unknown): unknown {
    if (typeof value === 'string') return this.#known.get(value) ?? value;
    if (Array.isArray(value)) return value.map((item) => this.real(item));
    if (!isObject(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, this.real(member)]));
  }
}

/** Texts that differ from server to server have one of these forms in both places. */
const changing: readonly RegExp[] = [
  /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/,
  /^[0-9a-f-]{32,}$/,
  /^\d{4}-\d\d-\d\d\.[0-9a-f]{12}$/,
  /^https?:/,
];

/** An id or a secret of the document; those of a server begin in the same way. */
const invented = /^((?:[a-z]+[_-])+)(?:abc|def|ghi|jkl|…|[0-9a-f]{8,})(?:@\d+)?$/;

type Freedom = Pick<Step, 'varies' | 'differs'>;

/** How an answer differs from what the document has, in words; nothing, if it does not. Numbers may be any. */
export function differences(documented: unknown, real: unknown, free: Freedom, place = 'answer'): string[] {
  if (Array.isArray(documented) && Array.isArray(real)) {
    const [item] = documented as unknown[];
    if (item === undefined) return real.length === 0 ? [] : [`${place} has items, and none in the document`];
    const found = real.map((one) => differences(item, one, free, `${place}.[]`));
    return found.toSorted((a, b) => a.length - b.length)[0] ?? [`${place} is empty, and not in the document`];
  }
  if (isObject(documented) && isObject(real)) {
    const names = new Set(
      [...Object.keys(documented), ...Object.keys(real)].filter((name) => !free.differs?.includes(name)),
    );
    return [...names].flatMap((name) => {
      const inside = `${place}.${name}`;
      if (!Object.hasOwn(documented, name)) return [`${inside} is not in the document: ${JSON.stringify(real[name])}`];
      if (!Object.hasOwn(real, name)) return [`${inside} is in the document alone`];
      return differences(documented[name], real[name], free, inside);
    });
  }
  if (documented === real || (typeof documented === 'number' && typeof real === 'number')) return [];
  if (typeof documented === 'string' && typeof real === 'string') {
    const [name = ''] = /[^.]+$/.exec(place.replace(/\.\[\]$/, '')) ?? [];
    if (free.varies?.includes(name) || isAlike(documented, real)) return [];
  }
  return [`${place} is ${JSON.stringify(real)}, and in the document ${JSON.stringify(documented)}`];
}

function isAlike(documented: string, real: string): boolean {
  const [, beginning] = invented.exec(documented) ?? [];
  if (beginning !== undefined) return real.startsWith(beginning);
  return changing.some((form) => form.test(documented) && form.test(real));
}

/** The time at which all examples were recorded, plus the whole hours between now and the given time. */
function stableTime(timeMs: number): number {
  const hourMs = 3_600_000;
  return Date.UTC(2026, 10, 23, 12) + Math.round((timeMs - Date.now()) / hourMs) * hourMs;
}

/**
 * An answer with stable values in place of those that differ from run to run: IDs are numbered `abc`, `def` and so on,
 * times, traces, secrets and addresses are constant, and long lists are cut.
 */
export function toExample(answer: unknown): unknown {
  const known = new Map<string, string>();
  const seen = new Map<string, number>();
  const idFor = (id: string, prefix: string): string => {
    const stable = known.get(id) ?? `${prefix}${['abc', 'def', 'ghi'][seen.get(prefix) ?? 0] ?? 'jkl'}`;
    if (!known.has(id)) seen.set(prefix, (seen.get(prefix) ?? 0) + 1);
    known.set(id, stable);
    return stable;
  };
  const text = JSON.stringify(answer, (name, value: unknown) => {
    // The last points of a graph are about the calls of this run, the first items of a list are the newest.
    if (Array.isArray(value) && value.length > 3) return name === 'data_points' ? value.slice(-2) : value.slice(0, 2);
    if (typeof value === 'number' && value > 1.7e9 && value < 2.2e9) return stableTime(value * 1_000) / 1_000;
    if (typeof value === 'string' && value.length > 500) return `${value.slice(0, 12)}…`;
    return value;
  })
    .replaceAll(/\b((?:[a-z]+[_-])+)[0-9a-f]{32}\b/g, idFor)
    .replaceAll(/"\d{4}-\d\d-\d\dT00:00:00\.000Z"/g, '"2026-12-01T00:00:00.000Z"')
    .replaceAll(/(?<=")\d{4}-\d\d-\d\dT(?!00:00:00)[\d:.]{12}Z/g, (time) =>
      new Date(stableTime(Date.parse(time))).toISOString(),
    )
    .replaceAll(/"[0-9a-f-]{32,36}"/g, '"01a209afc07470008001885eb92291f8"')
    .replaceAll(/\b(slk|inv)_[\w-]{20,}/g, '$1_…')
    .replaceAll(/\bwhsec_[^"]+/g, 'whsec_…')
    .replaceAll(/(?<=\btoken=)[\w.-]{40,}/g, 'abc')
    .replaceAll(/http:\/\/127\.0\.0\.1:\d+/g, 'https://sluice.example.com');
  return JSON.parse(text);
}
