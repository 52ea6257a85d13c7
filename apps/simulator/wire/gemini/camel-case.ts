// What stands below these is the caller's own and keeps its names.
const foreign = new Set([
  'args',
  'response',
  'parameters',
  'labels',
  'responseSchema',
  'responseJsonSchema',
  'parametersJsonSchema',
]);

/** The members in lowerCamelCase: Google's services take `generation_config` as well as `generationConfig`. */
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
