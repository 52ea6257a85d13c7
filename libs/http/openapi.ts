import { isDeepStrictEqual } from 'node:util';
import { z, type ZodType } from 'zod';
import { findClientForm, type ErrorSchema } from './answers/client-form.ts';
import { isOptional, pathParameters, plainPath, type Route } from './route.ts';

type Json = Record<string, unknown>;
export type OpenApiDocument = {
  openapi: '3.1.0';
  info: Json;
  servers: Json[];
  security: Json[];
  tags: Json[];
  paths: Record<string, Record<string, Json>>;
  components: { schemas: Json; responses: Json; headers: Json; parameters: Json; securitySchemes: Json };
};

/** The version of the interface specification that this API implements. The release is in package.json. */
const interfaceVersion = '2.0.0';

const tracingHeaders: Record<string, string> = {
  'trace-id': 'Groups requests. The gateway generates one if it is absent.',
  'span-id': 'ID of a span in the trace.',
  'parent-span-id': 'ID of the parent span.',
  'span-name': 'Name of the span.',
};

const headerTexts: Record<string, string> = {
  'session-id':
    'The agent session of the call, 1 to 128 printable ASCII characters. Other values are ignored. Headers of coding agents are read too (docs/logs.md).',
  'agent-id': 'The sub-agent of the session that makes the call.',
  'parent-agent-id': 'The agent that started the sub-agent.',
  metadata:
    'JSON object whose values have at most 128 characters. Values other than strings are converted to JSON text. Names that begin with an underscore are ignored.',
};

/** The values of headers that accept no others. */
const headerValues: Record<string, readonly string[]> = {
  'strict-open-ai-compliance': ['true', 'false'],
  cache: ['simple', 'true', 'false'],
  'cache-force-refresh': ['true', 'false'],
  debug: ['true', 'false'],
};

const errorStatuses = {
  public: ['4XX', '5XX'],
  protected: ['400', '401', '403', '4XX', '5XX'],
} as const;

/**
 * The OpenAPI 3.1 document of a route table, made from the schemas that also check the requests. Schemas with an id
 * (`.meta({ id })`) become components. `baseUrl` is the server's address without `/v1`, `tags` are
 * the descriptions of tags by name, and `answers` examples of answers with status 200 by operation ID.
 */
export function toOpenApi(
  routes: readonly Route[],
  options: {
    title: string;
    description: string;
    baseUrl: string;
    tags?: Readonly<Record<string, string>>;
    answers?: Readonly<Record<string, object>>;
  },
): OpenApiDocument {
  const schemas: Json = { ...errorSchemas };
  const paths: OpenApiDocument['paths'] = {};
  for (const route of routes) {
    const path = toTemplate(route.path);
    paths[path] ??= {};
    paths[path][route.method.toLowerCase()] = toOperation(route, schemas, options.answers?.[route.operationId]);
  }
  return {
    openapi: '3.1.0',
    info: { title: options.title, description: options.description, version: interfaceVersion },
    servers: [{ url: options.baseUrl }],
    security: [{ gatewayKey: [] }, { bearer: [] }],
    tags: [...new Set(routes.map((route) => route.tag))].map((name) => {
      const text = options.tags?.[name];
      return text === undefined ? { name } : { name, description: text };
    }),
    paths,
    components: {
      schemas,
      responses: Object.fromEntries(Object.keys(errorSchemas).map((name) => [name, errorResponse(name)])),
      headers: {
        'x-request-id': { description: 'ID of the request, for problem reports.', schema: { type: 'string' } },
        'x-gateway-trace-id': {
          description: 'ID of the trace that the request belongs to.',
          schema: { type: 'string' },
        },
      },
      parameters: Object.fromEntries(
        Object.entries(tracingHeaders).map(([name, text]) => [name, headerParameter(name, text)]),
      ),
      securitySchemes: {
        gatewayKey: { type: 'apiKey', in: 'header', name: 'x-gateway-api-key' },
        bearer: { type: 'http', scheme: 'bearer', description: 'The gateway key, if x-gateway-api-key is absent.' },
      },
    },
  };
}

function toOperation(route: Route, schemas: Json, answer: object | undefined): Json {
  const { request, scope, optionalScopes } = route;
  const parameters = [
    ...[...route.path.matchAll(pathParameters)].map(([, name = '']) => pathParameter(name, request?.params, schemas)),
    ...queryParameters(request?.query, schemas),
    ...(request?.headers ?? [])
      .filter((name) => tracingHeaders[name] === undefined)
      .map((name) => headerParameter(name, headerTexts[name] ?? '')),
    ...Object.keys(tracingHeaders).map((name) => ({ $ref: `#/components/parameters/${name}` })),
  ];
  const body = toRequestBody(route, schemas);
  const description = describe(route);
  return {
    operationId: route.operationId,
    summary: route.summary,
    ...(description === '' ? {} : { description }),
    tags: [route.tag],
    ...(route.deprecated === true ? { deprecated: true } : {}),
    ...(scope === 'public' ? { security: [] } : { 'x-scope': scope }),
    ...(optionalScopes ? { 'x-optional-scopes': optionalScopes } : {}),
    parameters,
    ...(body === null ? {} : { requestBody: body }),
    responses: toResponses(route, schemas, answer),
  };
}

/** The description with the errors below it, in Markdown. */
function describe({ description = '', errors = {} }: Route): string {
  const lines = Object.entries(errors).map(([code, when]) => `- \`${code}\`: ${when}`);
  return [description, ...(lines.length === 0 ? [] : [`Errors:\n\n${lines.join('\n')}`])].join('\n\n').trim();
}

function toRequestBody({ request, example }: Route, schemas: Json): Json | null {
  if (request?.body === undefined) return null;
  const schema = request.bodySchema ?? (typeof request.body === 'string' ? undefined : request.body);
  const isMultipart = request.body === 'multipart' || request.isForm === true;
  const contentType = isMultipart ? 'multipart/form-data' : 'application/json';
  return {
    // The provider decides whether a relayed body is valid.
    required: request.body !== 'relayed' && !isOptional(request.body),
    content: {
      [contentType]: {
        schema: schema === undefined ? openObject : toSchema(schema, 'input', schemas),
        ...(example === undefined ? {} : { example }),
      },
    },
  };
}

function toResponses(route: Route, schemas: Json, answer: object | undefined): Json {
  const responses: Json = {};
  const { errorSchema } = findClientForm({ url: route.path });
  for (const [status, { description, schema, contentType, streams }] of Object.entries(route.responses)) {
    const type = contentType ?? (schema === undefined ? 'application/octet-stream' : 'application/json');
    const example = answer !== undefined && status === '200' && type === 'application/json' ? { example: answer } : {};
    const content = {
      [type]: { schema: schema === undefined ? schemaOfType(type) : toSchema(schema, 'output', schemas), ...example },
      ...(streams === true ? { 'text/event-stream': { schema: { type: 'string' } } } : {}),
    };
    // Refusals before the handler runs are answered as JSON on every route.
    const orError = status === '4XX' ? errorResponse(errorSchema).content : {};
    responses[status] = { description, headers: commonHeaders, content: { ...content, ...orError } };
  }
  for (const status of errorStatuses[route.scope === 'public' ? 'public' : 'protected']) {
    responses[status] ??= { $ref: `#/components/responses/${errorSchema}` };
  }
  return responses;
}

const openObject = { type: 'object', additionalProperties: true };

/** For bodies without a schema. */
const schemaOfType = (contentType: string): Json =>
  contentType === 'application/json'
    ? openObject
    : { type: 'string', ...(contentType.startsWith('text/') ? {} : { format: 'binary' }) };

function pathParameter(name: string, params: ZodType | undefined, schemas: Json): Json {
  const schema = (params === undefined ? undefined : propertiesOf(toSchema(params, 'input', schemas)))?.[name];
  return { name, in: 'path', required: true, schema: schema ?? { type: 'string' } };
}

function queryParameters(query: ZodType | 'relayed' | undefined, schemas: Json): Json[] {
  if (query === undefined || query === 'relayed') return [];
  const schema = toSchema(query, 'input', schemas);
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  return Object.entries(propertiesOf(schema) ?? {}).map(([name, property]) => ({
    name,
    in: 'query',
    required: required.has(name),
    schema: property,
  }));
}

function propertiesOf(schema: Json): Json | undefined {
  return typeof schema.properties === 'object' && schema.properties !== null ? (schema.properties as Json) : undefined;
}

function headerParameter(name: string, description: string): Json {
  const text = `${description} Alias: x-portkey-${name}.`.trim();
  const values = headerValues[name];
  const schema = { type: 'string', ...(values === undefined ? {} : { enum: values }) };
  return { name: `x-gateway-${name}`, in: 'header', required: false, description: text, schema };
}

/**
 * A zod schema as JSON Schema 2020-12, which OpenAPI 3.1 uses. Its `$defs` (schemas with an id) move to the components. If
 * a schema differs between requests and responses (optional members become required), there are two components, and the
 * later one is named `XInput` or `XOutput`. A recursive schema must have an id.
 */
function toSchema(schema: ZodType, io: 'input' | 'output', schemas: Json): Json {
  const { $schema: _dialect, $defs, ...rest } = z.toJSONSchema(schema, { io, unrepresentable: 'any' });
  const names = new Map<string, string>();
  for (const [name, definition] of Object.entries($defs ?? {})) {
    const isTaken = schemas[name] !== undefined && !isDeepStrictEqual(schemas[name], toComponent(definition, names));
    names.set(name, isTaken ? `${name}${io === 'input' ? 'Input' : 'Output'}` : name);
  }
  for (const [name, definition] of Object.entries($defs ?? {})) {
    schemas[names.get(name) ?? name] ??= toComponent(definition, names);
  }
  return toComponent(rest, names) as Json;
}

function toComponent(value: unknown, names: ReadonlyMap<string, string>): unknown {
  if (Array.isArray(value)) return value.map((item) => toComponent(item, names));
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).map(([key, member]) => {
    if (key !== '$ref' || typeof member !== 'string') return [key, toComponent(member, names)];
    const name = member.replace(/^#\/\$defs\//, '');
    return [key, `#/components/schemas/${names.get(name) ?? name}`];
  });
  const node = withNullInside(Object.fromEntries(entries) as Json);
  // Without a format, generators for Go, Java and others make 32-bit numbers of integers.
  const isInteger = [node['type']].flat().includes('integer');
  return isInteger && node['format'] === undefined ? { ...node, format: 'int64' } : node;
}

/**
 * Merges a null branch into the type of another branch (`type: [string, null]`), also in a union inside a union. From a
 * branch that is only null, openapi-generator makes no Python code, and an anonymous type in other languages.
 */
function withNullInside(node: Json): Json {
  const { anyOf, ...rest } = node;
  if (!Array.isArray(anyOf)) return node;
  const branches = (anyOf as Json[]).flatMap((branch) =>
    Array.isArray(branch['anyOf']) && Object.keys(branch).length === 1 ? (branch['anyOf'] as Json[]) : [branch],
  );
  const others = branches.filter(({ type }) => type !== 'null');
  if (others.length === branches.length) return node;
  const host = others.find(({ type, const: only }) => typeof type === 'string' && only === undefined);
  const [choice] = others;
  if (host === undefined && Array.isArray(choice?.['oneOf'])) {
    const [first, ...more] = choice['oneOf'] as Json[];
    return { ...rest, ...choice, oneOf: [{ ...first, type: [first?.['type'], 'null'] }, ...more] };
  }
  if (host === undefined) return { ...rest, anyOf: branches };
  const values = Array.isArray(host['enum']) ? { enum: [...(host['enum'] as unknown[]), null] } : {};
  const nullable = { ...host, ...values, type: [host['type'], 'null'] };
  return others.length === 1
    ? { ...rest, ...nullable }
    : { ...rest, anyOf: others.map((branch) => (branch === host ? nullable : branch)) };
}

function toTemplate(path: string): string {
  return plainPath(path.replaceAll(pathParameters, '{$1}'));
}

const nullableString = { type: ['string', 'null'] };
const string = { type: 'string' };
const objectWith = (properties: Json, required = Object.keys(properties)) => ({ type: 'object', required, properties });

/** The errors of each form (`client-form.ts`). */
const errorSchemas: Record<ErrorSchema, Json> = {
  Error: objectWith({
    error: objectWith({ message: string, type: string, param: nullableString, code: nullableString }),
  }),
  AnthropicError: objectWith({
    type: { const: 'error' },
    error: objectWith({ type: string, message: string, code: nullableString }, ['type', 'message']),
    request_id: string,
  }),
  GoogleError: objectWith({
    error: objectWith(
      {
        code: { type: 'integer', format: 'int64' },
        message: string,
        status: string,
        details: { type: 'array', items: openObject },
      },
      ['code', 'message', 'status'],
    ),
  }),
  BedrockError: objectWith({ __type: string, message: string, reason: string }, ['__type', 'message']),
};
const commonHeaders = {
  'x-request-id': { $ref: '#/components/headers/x-request-id' },
  'x-gateway-trace-id': { $ref: '#/components/headers/x-gateway-trace-id' },
};
const errorResponse = (schema: string) => ({
  description: 'The error, with its cause and how to fix it.',
  headers: commonHeaders,
  content: { 'application/json': { schema: { $ref: `#/components/schemas/${schema}` } } },
});
