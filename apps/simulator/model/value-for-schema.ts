type Schema = Record<string, unknown>;

// A schema can refer to itself or branch at every level. Beyond these limits, only required members are generated.
const depthMax = 12;
const valuesMax = 5_000;
const nestingMax = 8;

const words = ['amber', 'harbour', 'linen', 'meadow', 'orbit', 'paper', 'river', 'signal', 'thistle', 'willow'];
const formats: Record<string, string> = {
  date: '2026-03-14',
  'date-time': '2026-03-14T09:26:53Z',
  time: '09:26:53Z',
  email: 'ada@example.com',
  uri: 'https://example.com/item',
  uuid: '3f2b8c1e-5a77-4d0b-9e21-6c0f4b7a9d10',
  ipv4: '192.0.2.7',
  hostname: 'host.example.com',
};

/**
 * A value that satisfies a JSON Schema of the kind used for tools and structured output: type, enum, const, properties,
 * required, items and their counts, numeric and length bounds, formats, anyOf/oneOf (the first), allOf (merged) and
 * local $ref. Other keywords (pattern, if/then, …) are ignored. Total: any input results in some value.
 */
export function valueForSchema(schema: unknown, random: () => number): unknown {
  const root = isSchema(schema) ? schema : {};
  let made = 0; // Counts values and merged parts together: `valuesMax` limits the work of one call.

  const resolve = (given: unknown, nesting = 0): Schema => {
    made++;
    let current = isSchema(given) ? given : {};
    for (let hop = 0; hop < 16 && typeof current['$ref'] === 'string'; hop++) {
      const target = followPointer(root, current['$ref']);
      current = isSchema(target) ? target : {};
    }
    if (nesting >= nestingMax || made >= valuesMax) return current;
    const branch = firstOf(current['anyOf']) ?? firstOf(current['oneOf']);
    const parts = Array.isArray(current['allOf']) ? current['allOf'].filter(isSchema) : [];
    return [...(branch === undefined ? [] : [branch]), ...parts].reduce<Schema>(
      (merged, part) => mergeSchemas(merged, resolve(part, nesting + 1)),
      current,
    );
  };

  const make = (given: unknown, depth: number): unknown => {
    const current = resolve(given);
    if (made >= 2 * valuesMax || depth >= 2 * depthMax) return null;
    if ('const' in current) return current['const'];
    if (Array.isArray(current['enum']) && current['enum'].length > 0) return pick<unknown>(current['enum'], random);
    const scarce = depth >= depthMax || made >= valuesMax;
    switch (typeOf(current)) {
      case 'object': {
        const properties = isSchema(current['properties']) ? current['properties'] : {};
        const required = new Set(Array.isArray(current['required']) ? current['required'] : []);
        const value: Record<string, unknown> = {};
        for (const [name, property] of Object.entries(properties)) {
          if (required.has(name) || (!scarce && random() < 0.7)) {
            // Uses defineProperty, because a property can be called __proto__.
            Object.defineProperty(value, name, {
              value: make(property, depth + 1),
              enumerable: true,
              configurable: true,
              writable: true,
            });
          }
        }
        return value;
      }
      case 'array': {
        const least = wholeNumber(current['minItems'], 0);
        const count = Math.max(
          least,
          scarce ? 0 : Math.min(wholeNumber(current['maxItems'], 3), 1 + Math.floor(random() * 3)),
        );
        return Array.from({ length: Math.min(count, valuesMax) }, () => make(current['items'], depth + 1));
      }
      case 'integer':
        return Math.round(numberWithin(current, 1, random));
      case 'number':
        return Math.round(numberWithin(current, 0.01, random) * 100) / 100;
      case 'boolean':
        return random() < 0.5;
      case 'null':
        return null;
      default:
        return textFor(current, random);
    }
  };
  return make(root, 0);
}

function typeOf(schema: Schema): unknown {
  const type = Array.isArray(schema['type'])
    ? (schema['type'].find((name) => name !== 'null') ?? 'null')
    : schema['type'];
  if (type !== undefined) return type;
  if ('properties' in schema) return 'object';
  return 'items' in schema ? 'array' : 'string';
}

function textFor(schema: Schema, random: () => number): string {
  const format = typeof schema['format'] === 'string' ? formats[schema['format']] : undefined;
  if (format !== undefined) return format;
  const least = Math.min(wholeNumber(schema['minLength'], 0), 10_000);
  const text = `${pick(words, random)} ${pick(words, random)}`.padEnd(least, ' thistle');
  return text.slice(0, Math.max(least, wholeNumber(schema['maxLength'], text.length)));
}

function numberWithin(schema: Schema, step: number, random: () => number): number {
  const least = bound(schema['minimum']) ?? shifted(schema['exclusiveMinimum'], step);
  const most = bound(schema['maximum']) ?? shifted(schema['exclusiveMaximum'], -step);
  const low = least ?? (most === undefined ? 1 : Math.min(0, most));
  const high = most ?? low + 99;
  const multiple = bound(schema['multipleOf']);
  const value = low + Math.floor(((high - low) / step) * random()) * step;
  return multiple === undefined || multiple <= 0 ? value : Math.ceil(value / multiple) * multiple;
}

function mergeSchemas(left: Schema, right: Schema): Schema {
  const merged: Schema = { ...left, ...right };
  for (const key of ['properties'] as const) {
    if (isSchema(left[key]) && isSchema(right[key])) merged[key] = { ...left[key], ...right[key] };
  }
  if (Array.isArray(left['required']) && Array.isArray(right['required'])) {
    merged['required'] = [...left['required'], ...right['required']];
  }
  return merged;
}

function followPointer(root: Schema, reference: string): unknown {
  if (!reference.startsWith('#')) return undefined;
  return reference
    .slice(1)
    .split('/')
    .filter((step) => step !== '')
    .map((step) => decodeStep(step))
    .reduce<unknown>((at, step) => (isSchema(at) ? at[step] : undefined), root);
}

function decodeStep(step: string): string {
  return step.replaceAll('~1', '/').replaceAll('~0', '~');
}

function firstOf(value: unknown): Schema | undefined {
  return Array.isArray(value) ? value.find(isSchema) : undefined;
}

function isSchema(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function bound(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}

function shifted(value: unknown, step: number): number | undefined {
  return typeof value === 'number' ? value + step : undefined;
}

function wholeNumber(value: unknown, fallback: number): number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 ? value : fallback;
}

function pick<Item>(items: readonly Item[], random: () => number): Item | undefined {
  return items[Math.floor(random() * items.length)];
}
