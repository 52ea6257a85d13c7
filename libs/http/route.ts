import type { Request, RequestHandler, Response } from 'express';
import { z, type ZodType } from 'zod';
import { parseWith, refuseLostNames } from '#libs/contracts/parse.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Scope } from './caller.ts';
import { jsonBodyOf } from './json-body.ts';

export type HttpMethod = 'GET' | 'POST' | 'PUT' | 'DELETE';

/**
 * What a route takes. `query`: what is not in the schema is refused, and everything where there is none; a loose schema also
 * takes `name[key]` of its own names; `relayed` leaves the query to the handler. `body`: a zod schema or `json-bytes` make the application read a JSON body (`jsonBodyOf`);
 * `multipart` leaves the stream to `receiveUpload`; `relayed` leaves it to the handler, whatever its content type. `bodySchema` documents a body that is not checked by the table.
 */
export type RouteRequest = {
  params?: ZodType;
  query?: ZodType | 'relayed';
  body?: ZodType | 'multipart' | 'json-bytes' | 'relayed';
  bodySchema?: ZodType;
  /** By which the threads check a large body; of others, the handler does it. */
  contract?: string;
  /** A relayed body is a form, for the document. Otherwise it is JSON. */
  isForm?: boolean;
  /**
   * Names of `x-gateway-*` request headers (without the prefix) that the route reads, for the document; `metadata` is read
   * and checked only where it stands here.
   */
  headers?: readonly string[];
  /** Overrides the application's `jsonBody.sizeBytesMax`. */
  bodySizeBytesMax?: number;
};

/** `contentType` is application/json when absent; a body without a schema is any bytes. */
export type RouteResponse = { description: string; schema?: ZodType; contentType?: string };

/**
 * One operation of the API. The table of these is the only way in: what is not in it is 404, and a route that does not
 * say who may call it (`scope`) stops the boot.
 */
export type Route = {
  method: HttpMethod;
  /** Express form: `/v1/batches/:batchId`. */
  path: string;
  operationId: string;
  summary: string;
  tag: string;
  scope: Scope | 'public';
  request?: RouteRequest;
  responses: Readonly<Record<number, RouteResponse>>;
  handler: RequestHandler;
};

type Input<Schema> = Schema extends ZodType ? z.output<Schema> : undefined;
type InputSchemas = { params?: ZodType; query?: ZodType; body?: ZodType };
type InputOf<Schemas extends InputSchemas> = {
  params: Input<Schemas['params']>;
  query: Input<Schemas['query']>;
  body: Input<Schemas['body']>;
};

/**
 * The `request` and `handler` of a route from one set of schemas, so that what is documented is what is checked:
 * `{ method: 'GET', …, ...withInput({ query: ListQuery }, async ({ query }, request, response) => …) }`.
 * A bad part is answered with 400 (params, then query, then body) before the handler runs.
 */
export function withInput<const Schemas extends InputSchemas>(
  schemas: Schemas,
  handle: (input: InputOf<Schemas>, request: Request, response: Response) => Promise<void> | void,
): { request: Schemas; handler: RequestHandler } {
  const handler: RequestHandler = (request, response) => {
    if (schemas.params !== undefined) refuseImpossibleIds(request);
    if (schemas.body !== undefined) refuseLostNames(jsonBodyOf(request).value);
    const input = {
      params: schemas.params === undefined ? undefined : parseWith(schemas.params, request.params),
      query: schemas.query === undefined ? undefined : parseWith(schemas.query, { ...request.query }),
      body: schemas.body === undefined ? undefined : parseWith(schemas.body, jsonBodyOf(request).value),
    };
    return handle(input as InputOf<Schemas>, request, response);
  };
  return { request: schemas, handler };
}

/** No id holds U+0000, and Postgres takes no text that does: looked up, it would be a fault of the database. */
function refuseImpossibleIds({ params }: Request): void {
  for (const [name, value] of Object.entries(params)) {
    if (!String(value).includes('\0')) continue;
    const message = `No id contains the character U+0000, but the '${name}' of this request does.`;
    throw new GatewayError('not_found', null, message, { param: name });
  }
}

/** Azure's clients put it on every call; nothing here depends on it. */
const ignoredParameter = 'api-version';

/**
 * Makes the check of a route's query, which throws invalid_request for a parameter that the route does not take
 * (`unknown_parameter`) or that comes twice. null: every query passes, as for routes without a key: those who watch the
 * process may have parameters of their own.
 */
export function createQueryCheck({ scope, request }: Route): ((query: Request['query']) => void) | null {
  const schema = request?.query;
  if (scope === 'public' || schema === 'relayed') return null;
  const { properties = {}, additionalProperties } =
    schema === undefined ? {} : z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' });
  const isLoose = typeof additionalProperties === 'object';
  const names = new Set(Object.keys(properties));
  const known = [...names, ...(isLoose ? [...names].map((name) => `${name}[…]`) : [])];
  const takes =
    known.length === 0 ? 'no query parameters' : `the query parameters ${known.map((name) => `'${name}'`).join(', ')}`;
  const isKnown = (name: string): boolean => {
    if (names.has(name) || name === ignoredParameter) return true;
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
    }
  };
}

const scopeShape = /^[a-z_]+\.(?:read|write)$/;

/** Throws when the table is not one that may be served; run at boot. */
export function checkRoutes(routes: readonly Route[]): void {
  const seen = new Set<string>();
  const refuseRepeat = (what: string): void => {
    if (seen.has(what)) throw new Error(`the route table has ${what} twice`);
    seen.add(what);
  };
  for (const route of routes) {
    const name = `${route.method} ${route.path}`;
    // Read as unknown: a table assembled at run time may lack what the type demands.
    const scope: unknown = route.scope;
    if (typeof scope !== 'string' || (scope !== 'public' && !scopeShape.test(scope))) {
      throw new Error(`route ${name} declares no scope: give it '<area>.read', '<area>.write' or 'public'`);
    }
    if (!/^\/(?:(?:[\w.-]+|:\w+)(?:\/(?:[\w.-]+|:\w+))*)?$/.test(route.path)) {
      throw new Error(`route ${name} must be made of plain segments and :parameters`);
    }
    refuseRepeat(`${route.method} ${route.path.replaceAll(/:\w+/g, ':')}`);
    refuseRepeat(`operation ${route.operationId}`);
  }
}
