import type { OpenApiDocument } from '#libs/http/openapi.ts';

type Json = Record<string, unknown>;

/**
 * The TypeScript types of an OpenAPI document, in the shape that openapi-fetch takes (`paths` and `components`). Reads what
 * toOpenApi writes, which is JSON Schema as zod makes it; a keyword that it does not know becomes `unknown`.
 */
export function typesOf(document: OpenApiDocument): string {
  const paths = Object.entries(document.paths).map(([path, methods]) => {
    const operations = Object.entries(methods).map(
      ([method, operation]) => `    ${method}: ${operationType(operation)};`,
    );
    return `  ${JSON.stringify(path)}: {\n${operations.join('\n')}\n  };`;
  });
  const schemas = Object.entries(document.components.schemas).map(
    ([name, schema]) => `    ${JSON.stringify(name)}: ${typeOf(schema)};`,
  );
  return `// Made by apps/console/generate.ts. Do not change it by hand.\nexport type paths = {\n${paths.join('\n')}\n};\nexport type components = {\n  schemas: {\n${schemas.join('\n')}\n  };\n};\n`;
}

type Parameter = { name: string; in: string; required?: boolean; schema: unknown };

function operationType(operation: Json): string {
  const parameters = (operation['parameters'] as (Parameter | { $ref: string })[]).filter((each) => 'name' in each);
  const ofPlace = (place: string): string[] =>
    parameters
      .filter((parameter) => parameter.in === place)
      .map(({ name, required, schema }) => `${JSON.stringify(name)}${required === true ? '' : '?'}: ${typeOf(schema)}`);
  const group = (place: string, isRequired: boolean): string => {
    const members = ofPlace(place);
    return members.length === 0 ? `${place}?: never` : `${place}${isRequired ? '' : '?'}: { ${members.join('; ')} }`;
  };
  const isRequired = (place: string): boolean => parameters.some((each) => each.in === place && each.required === true);
  const places = ['path', 'query', 'header'].map((place) => group(place, isRequired(place)));
  const body = operation['requestBody'] as { required: boolean; content: Json } | undefined;
  const requestBody =
    body === undefined ? '' : `requestBody${body.required ? '' : '?'}: { content: ${contentType(body.content)} }; `;
  return `{ parameters: { ${places.join('; ')} }; ${requestBody}responses: { ${responseTypes(operation['responses'] as Json)} } }`;
}

function responseTypes(responses: Json): string {
  const types = Object.entries(responses)
    .filter(([status]) => /^\d+$/.test(status))
    .map(([status, response]) => {
      const { content } = response as { content?: Json };
      return content === undefined ? null : `${status}: { content: ${contentType(content)} }`;
    });
  const error = 'default: { content: { "application/json": components["schemas"]["Error"] } }';
  return [...types.filter((type) => type !== null), error].join('; ');
}

const contentType = (content: Json): string =>
  `{ ${Object.entries(content)
    .map(([type, media]) => `${JSON.stringify(type)}: ${typeOf((media as Json)['schema'])}`)
    .join('; ')} }`;

function typeOf(schema: unknown): string {
  if (schema === true || schema === undefined || typeof schema !== 'object' || schema === null) return 'unknown';
  const { $ref, const: value, enum: values, anyOf, oneOf, allOf, type, ...rest } = schema as Json;
  if (typeof $ref === 'string') return `components["schemas"][${JSON.stringify($ref.split('/').at(-1))}]`;
  if ('const' in schema) return JSON.stringify(value);
  if (Array.isArray(values)) return values.map((each) => JSON.stringify(each)).join(' | ');
  const choices = anyOf ?? oneOf;
  if (Array.isArray(choices)) return `(${choices.map(typeOf).join(' | ')})`;
  if (Array.isArray(allOf)) return `(${allOf.map(typeOf).join(' & ')})`;
  if (Array.isArray(type)) return `(${type.map((each) => typeOf({ ...rest, type: each })).join(' | ')})`;
  switch (type) {
    case 'string':
    case 'boolean':
    case 'null':
      return type;
    case 'integer':
    case 'number':
      return 'number';
    case 'array':
      return `(${typeOf(rest['items'])})[]`;
    case 'object':
      return objectType(rest);
    default:
      return 'unknown';
  }
}

function objectType({ properties, required, additionalProperties }: Json): string {
  const needed = new Set(Array.isArray(required) ? required : []);
  const members = Object.entries((properties as Json | undefined) ?? {}).map(
    ([name, schema]) => `${JSON.stringify(name)}${needed.has(name) ? '' : '?'}: ${typeOf(schema)}`,
  );
  if (members.length > 0) return `{ ${members.join('; ')} }`;
  return typeof additionalProperties === 'object' && additionalProperties !== null
    ? `{ [name: string]: ${typeOf(additionalProperties)} }`
    : '{ [name: string]: unknown }';
}
