import type { Request, RequestHandler, Response } from 'express';
import { z, type ZodType } from 'zod';
import { parseWith, refuseProtoMembers } from '#libs/contracts/parse.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Scope } from './caller.ts';
import { hasBody } from './bodies/drain-request.ts';
import { getJsonBody } from './bodies/json-body.ts';

export type HttpMethod = 'GET' | 'POST' | 'PUT' | 'DELETE';

/**
 * The input that a route accepts. `query`: parameters that the schema does not have are rejected, or all of them if there is
 * no schema; a loose schema also accepts `name[key]` for its names; `relayed` leaves the query to the handler. `body`: with
 * a zod schema or `json-bytes` the application reads a JSON body (`getJsonBody`), which can only be absent if the schema is
 * optional; `multipart` leaves the stream to `receiveUpload`; `relayed` leaves it to the handler, whatever its content type.
 * `bodySchema` documents a body that the route table does not check.
 */
export type RouteRequest = {
  params?: ZodType;
  query?: ZodType | 'relayed';
  body?: ZodType | 'multipart' | 'json-bytes' | 'relayed';
  bodySchema?: ZodType;
  /** The contract by which threads check a large body. Without one, the handler checks it. */
  contract?: string;
  /** For the document: a relayed body is a form instead of JSON. */
  isForm?: boolean;
  /**
   * Names of `x-gateway-*` request headers (without the prefix) that the route reads, for the document. `metadata` is only
   * read and checked if it is listed here.
   */
  headers?: readonly string[];
  /** Overrides the application's `jsonBody.sizeBytesMax`, including for a body that the route's schema checks. */
  bodySizeBytesMax?: number;
  /** Likewise for `jsonBody.membersMax`. */
  bodyMembersMax?: number;
};

/**
 * `contentType` is application/json if absent. A response without a schema is arbitrary bytes. `streams`: it is sent as
 * server-sent events if the request asks for a stream.
 */
export type RouteResponse = { description: string; schema?: ZodType; contentType?: string; streams?: boolean };

/**
 * One operation of the API. Requests that match no route get 404. The start fails if a route does not declare who can
 * call it (`scope`).
 */
export type Route = {
  method: HttpMethod;
  /** In the form of express: `/v1/batches/:batchId`, with a backslash before a colon that is part of the path. */
  path: string;
  operationId: string;
  summary: string;
  /** For the document, in Markdown: how the operation behaves, beyond its summary. */
  description?: string;
  /** A body to send: JSON, or the parts of a form. */
  example?: object;
  /** The codes of errors that not every operation has, each with its cause. */
  errors?: Readonly<Record<string, string>>;
  tag: string;
  scope: Scope | 'public';
  /** With these scopes, a caller gets a more detailed answer. */
  optionalScopes?: readonly Scope[];
  /** It remains for clients that use it, but there is a better alternative. */
  deprecated?: boolean;
  request?: RouteRequest;
  /** `4XX`: in addition to the JSON of errors. */
  responses: Readonly<{ [status: number]: RouteResponse; '4XX'?: RouteResponse }>;
  handler: RequestHandler;
};

/** How the document describes an operation, beyond its summary. */
export type RouteText = Pick<Route, 'description' | 'example' | 'errors'>;

/** The route with texts: descriptions and errors of all of them, one after the other. */
export const withTexts = (route: Route, ...texts: readonly (RouteText | undefined)[]): Route => ({
  ...route,
  ...(Object.assign({}, ...texts) as RouteText),
  description: texts.flatMap((text) => text?.description ?? []).join(' '),
  errors: Object.assign({}, ...texts.map((text) => text?.errors)) as Record<string, string>,
});

type Input<Schema> = Schema extends ZodType ? z.output<Schema> : undefined;
type InputSchemas = { params?: ZodType; query?: ZodType; body?: ZodType } & Pick<
  RouteRequest,
  'headers' | 'bodySizeBytesMax' | 'bodyMembersMax'
>;
type InputOf<Schemas extends InputSchemas> = {
  params: Input<Schemas['params']>;
  query: Input<Schemas['query']>;
  body: Input<Schemas['body']>;
};

/**
 * The `request` and `handler` of a route from one set of schemas, so that requests are checked by the documented
 * schemas: `{ method: 'GET', …, ...withInput({ query: ListQuery }, async ({ query }, request, response) => …) }`.
 * Params, query and body are checked in this order; an invalid one is answered with 400 before the handler runs.
 */
export function withInput<const Schemas extends InputSchemas>(
  schemas: Schemas,
  handle: (input: InputOf<Schemas>, request: Request, response: Response) => Promise<void> | void,
): { request: Schemas; handler: RequestHandler } {
  const handler: RequestHandler = (request, response) => {
    if (schemas.params !== undefined) refuseImpossibleIds(request);
    if (schemas.query !== undefined) refuseImpossibleTexts(request);
    const readsBody = schemas.body !== undefined && !(isOptional(schemas.body) && !hasBody(request));
    if (readsBody) refuseProtoMembers(getJsonBody(request).value);
    const own = (value: unknown, schema: ZodType): unknown => withoutPathParameters(value, schema, request.params);
    const input = {
      params: schemas.params === undefined ? undefined : parseWith(schemas.params, request.params),
      query:
        schemas.query === undefined ? undefined : parseWith(schemas.query, own({ ...request.query }, schemas.query)),
      body:
        schemas.body && readsBody ? parseWith(schemas.body, own(getJsonBody(request).value, schemas.body)) : undefined,
    };
    return handle(input as InputOf<Schemas>, request, response);
  };
  return { request: schemas, handler };
}

/** The spellings of a path parameter in queries and bodies: `userId` or `user_id`. */
const spellings = (parameter: string): string[] => [
  ...new Set([parameter, parameter.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)]),
];

/**
 * Portkey's clients repeat path parameters in the query or the body. Returns the value without those that the schema
 * does not have. Throws invalid_request for one that differs from the path.
 */
function withoutPathParameters(value: unknown, schema: ZodType, params: Request['params']): unknown {
  if (typeof value !== 'object' || value === null) return value;
  const whole = schema instanceof z.ZodOptional ? schema.unwrap() : schema;
  const known = whole instanceof z.ZodObject ? whole.shape : {};
  const repeated = Object.keys(params).flatMap((parameter) =>
    spellings(parameter)
      .filter((name) => Object.hasOwn(value, name) && !Object.hasOwn(known, name))
      .map((name) => ({ name, parameter })),
  );
  if (repeated.length === 0) return value;
  const rest: Record<string, unknown> = { ...value };
  for (const { name, parameter } of repeated) {
    if (String(rest[name]) !== params[parameter]) {
      const message = `Invalid '${name}': it differs from the one in the path. Leave it out, or send the same value.`;
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: name });
    }
    delete rest[name];
  }
  return rest;
}

/** Whether a body of this schema can be absent. */
export const isOptional = (schema: unknown): boolean => schema instanceof z.ZodOptional;

/** No ID contains U+0000, and Postgres accepts no text that does, so looking it up would fail as a database error. */
function refuseImpossibleIds({ params }: Request): void {
  for (const [name, value] of Object.entries(params)) {
    if (!String(value).includes('\0')) continue;
    const message = `The '${name}' of this request contains the character U+0000, which no ID contains.`;
    throw new GatewayError('not_found', null, message, { param: name });
  }
}

/** The same applies to queries. Texts inside JSON are checked by the contract of the parameter. */
function refuseImpossibleTexts({ query }: Request): void {
  for (const [name, value] of Object.entries(query)) {
    if (![value].flat().some((text) => typeof text === 'string' && text.includes('\0'))) continue;
    const message = `Invalid '${name}': expected text without the character U+0000.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: name });
  }
}

/** Azure's clients add it to every call, but it has no effect here. */
const ignoredParameter = 'api-version';

/**
 * Creates the check of a route's query, which throws invalid_request for an unknown (`unknown_parameter`) or repeated
 * parameter. null if every query is allowed, as on routes without a key, because monitoring tools can add their own
 * parameters.
 */
export function createQueryCheck({ scope, path, request }: Route): ((query: Request['query']) => void) | null {
  const schema = request?.query;
  if (scope === 'public' || schema === 'relayed') return null;
  const { properties = {}, additionalProperties } =
    schema === undefined ? {} : z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' });
  const isLoose = typeof additionalProperties === 'object';
  const names = new Set(Object.keys(properties));
  const known = [...names, ...(isLoose ? [...names].map((name) => `${name}[…]`) : [])];
  const takes =
    known.length === 0 ? 'no query parameters' : `the query parameters ${known.map((name) => `'${name}'`).join(', ')}`;
  // They are ignored in a query without a schema; otherwise `withInput` compares them with the path.
  const inPath = new Set(path.matchAll(pathParameters).flatMap(([, name = '']) => spellings(name)));
  const isKnown = (name: string): boolean => {
    if (names.has(name) || inPath.has(name) || name === ignoredParameter) return true;
    const [, base = ''] = /^([^[]+)\[.*\]$/s.exec(name) ?? [];
    return isLoose && names.has(base);
  };
  return (query) => {
    for (const [name, value] of Object.entries(query)) {
      const param = name.length > 100 ? `${name.slice(0, 100)}…` : name;
      if (!isKnown(name)) {
        const message = `Unknown parameter: '${param}'. This route accepts ${takes}.`;
        throw new GatewayError('invalid_request', 'unknown_parameter', message, { param });
      }
      if (Array.isArray(value)) {
        const message = `The query parameter '${param}' appears more than once. Send it only once.`;
        throw new GatewayError('invalid_request', 'invalid_value', message, { param });
      }
      // No text in Postgres contains it, so it cannot match any stored text.
      if (typeof value === 'string' && value.includes('\0')) {
        const message = `Invalid '${param}': expected text without the character U+0000.`;
        throw new GatewayError('invalid_request', 'invalid_value', message, { param });
      }
    }
  };
}

/** The parameters in the path of a route. */
export const pathParameters = /(?<!\\):(\w+)/g;

/** The path of a route without backslashes, for people. */
export const plainPath = (path: string): string => (path.includes('\\') ? path.replaceAll('\\', '') : path);

const scopeShape = /^[a-z_]+\.(?:read|write)$/;

/** Throws if the route table is invalid. Runs at start. */
export function checkRoutes(routes: readonly Route[]): void {
  const seen = new Set<string>();
  const refuseRepeat = (what: string): void => {
    if (seen.has(what)) throw new Error(`the route table has ${what} twice`);
    seen.add(what);
  };
  for (const route of routes) {
    const name = `${route.method} ${route.path}`;
    // Read as unknown, because a table built at run time can lack members that the type requires.
    const scope: unknown = route.scope;
    if (typeof scope !== 'string' || (scope !== 'public' && !scopeShape.test(scope))) {
      throw new Error(`route ${name} declares no scope: give it '<area>.read', '<area>.write' or 'public'`);
    }
    if (!/^\/(?:(?:[\w.-]+|:\w+)(?:\/(?:[\w.-]+|:\w+))*(?:\\:\w+)?)?$/.test(route.path)) {
      throw new Error(`route ${name} can only consist of plain segments and :parameters`);
    }
    refuseRepeat(`${route.method} ${route.path.replaceAll(pathParameters, ':')}`);
    refuseRepeat(`operation ${route.operationId}`);
  }
}
