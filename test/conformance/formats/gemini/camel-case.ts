// Members below these belong to the caller and keep their names.
const foreign = new Set([
  'args',
  'response',
  'parameters',
  'labels',
  'responseSchema',
  'responseJsonSchema',
  'parametersJsonSchema',
]);

/** Converts members to lowerCamelCase: Google accepts both `generation_config` and `generationConfig`. */
export function camelCase(value: unknown): unknown {
  if (Array.isArray(value)) return value.map((item) => camelCase(item));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => {
      const camel = name.replaceAll(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
      return [camel, foreign.has(camel) ? member : camelCase(member)];
    }),
  );
}
