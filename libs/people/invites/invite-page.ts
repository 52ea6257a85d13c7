import { createHash } from 'node:crypto';
import express, { type Request, type Response } from 'express';
import { z } from 'zod';
import { AcceptInviteRequest } from '#libs/contracts/people/people.ts';
import { parseWith } from '#libs/contracts/parse.ts';
import { statusOf, toErrorBody } from '#libs/http/answers/error-response.ts';
import { contextOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

type Accept = (request: Request, names: z.output<typeof AcceptInviteRequest>) => Promise<object>;
type Accepted = { email: string; workspace_api_keys: { key: string; workspace_id: string }[] };

const path = '/v1/admin/users/invites/accept';
const contentType = 'text/html; charset=utf-8';
const page = {
  200: { description: 'A page for people.', contentType },
  '4XX': { description: 'A page that says what did not work.', contentType },
};
const about = { tag: 'Invites', scope: 'public' } as const;
const formBytesMax = 8_192;

/**
 * What a browser shows at the link of an invite: a form for the names, which accepts the invite. Opening the link changes
 * nothing, because mail programs open links too. The token is in the fragment of the link, so that no server logs it; the one
 * script of the page puts it into the form. The page loads nothing.
 */
export function invitePageRoutes(accept: Accept): Route[] {
  return [
    {
      ...about,
      method: 'GET',
      path,
      operationId: 'showInvite',
      summary: 'The page of an invite, where a person accepts it; needs no key',
      description: 'A page for people. Opening it does not accept the invite.',
      responses: page,
      ...withInput({}, (_input, _request, response) => {
        send(response, 200, form);
      }),
    },
    {
      ...about,
      method: 'POST',
      path: `${path}/form`,
      operationId: 'submitInvite',
      summary: 'Accept an invite with the form of its page; programs send JSON to the operation acceptInvite',
      description: 'Sent by the form on the page, and answered with a page.',
      example: { token: 'inv_…', first_name: 'Ada', last_name: 'Lovelace' },
      errors: { invalid_form: 'the form lacks a field' },
      request: { body: 'relayed', bodySchema: AcceptInviteRequest, isForm: 'urlencoded' },
      responses: page,
      async handler(request, response) {
        try {
          const names = parseWith(AcceptInviteRequest, await readForm(request, response));
          send(response, 200, welcome((await accept(request, names)) as Accepted));
        } catch (error) {
          // Bugs are logged and answered like everywhere.
          if (!(error instanceof GatewayError)) throw error;
          const { message } = toErrorBody(error, contextOf(request).requestId).error;
          send(response, statusOf(error), `<h1>This did not work</h1><p>${escapeHtml(message)}</p>`);
        }
      },
    },
  ];
}

const parseForm = express.urlencoded({ extended: false, limit: formBytesMax, parameterLimit: 10 });

/** Throws invalid_request for a body that is no form, or too large. */
async function readForm(request: Request, response: Response): Promise<unknown> {
  const failure = await new Promise<unknown>((resolve) => parseForm(request, response, resolve));
  if (failure === undefined && typeof request.body === 'object') return { ...request.body };
  const message = `Expected a form (application/x-www-form-urlencoded) of at most ${formBytesMax} bytes.`;
  throw new GatewayError('invalid_request', 'invalid_form', message, { cause: failure });
}

const style =
  'body{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:3rem auto;padding:0 1rem}' +
  'label{display:block;margin:.8rem 0}input,button{font:inherit;display:block;padding:.4rem}code{overflow-wrap:anywhere}';

/** Puts the token of the address into the form, and takes it out of the address and the history. */
const script =
  "const t=new URLSearchParams(location.hash.slice(1)).get('token');" +
  "if(t){const i=document.forms[0].token;i.value=t;i.parentElement.hidden=true;history.replaceState(null,'',location.pathname)}";

const hashOf = (text: string): string => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
const policy = `default-src 'none'; style-src ${hashOf(style)}; script-src ${hashOf(script)}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'`;

function send(response: Response, status: number, body: string): void {
  response.status(status);
  response.setHeader('content-type', contentType);
  response.setHeader('content-security-policy', policy);
  response.setHeader('referrer-policy', 'no-referrer');
  response.setHeader('cache-control', 'no-store');
  response.setHeader('x-content-type-options', 'nosniff');
  response.end(
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">' +
      `<meta name="robots" content="noindex"><title>Invite</title><style>${style}</style></head><body><main>${body}</main></body></html>`,
  );
}

/** The action is relative, so that the form also works below a path of a proxy. */
const form =
  '<h1>You are invited</h1><p>Accept the invite to use the language models of your organisation.</p>' +
  '<form method="post" action="accept/form">' +
  '<label>Token, from the end of the link <input name="token" maxlength="200" required autocomplete="off"></label>' +
  '<label>First name <input name="first_name" maxlength="100" autocomplete="given-name"></label>' +
  '<label>Last name <input name="last_name" maxlength="100" autocomplete="family-name"></label>' +
  `<button>Accept</button></form><script>${script}</script>`;

function welcome({ email, workspace_api_keys: keys }: Accepted): string {
  const shown = keys.map(
    ({ key, workspace_id: id }) => `<li>Workspace ${escapeHtml(id)}: <code>${escapeHtml(key)}</code></li>`,
  );
  const kept =
    shown.length === 0
      ? ''
      : `<p>These are your API keys. Copy them now: they are not shown again.</p><ul>${shown.join('')}</ul>`;
  return `<h1>Welcome</h1><p>You are a user now, as ${escapeHtml(email)}.</p>${kept}`;
}

const entities: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
const escapeHtml = (text: string): string => text.replaceAll(/[&<>"']/g, (character) => entities[character] ?? '');
