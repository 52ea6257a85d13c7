import { readdirSync } from 'node:fs';
import path from 'node:path';
import type { RequestHandler } from 'express';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Route } from '#libs/http/route.ts';
import { assetText, pageText, serveFile } from './static-files.ts';

/** The folder into which `npm run build:console` writes the built console. */
const consoleFolder = path.join(import.meta.dirname, '../../console/dist');

const contentTypes: Readonly<Record<string, string>> = {
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
};

/**
 * Scripts and styles come only from here, and the pages can call only this server, so that data in the browser stays
 * between the two.
 */
const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

/**
 * The path of a page of the console has at most two names, such as /console/batches/batch_…. All of them are answered
 * with the same HTML file.
 */
const pagePaths = ['/console', '/console/:page', '/console/:page/:record', '/console/:page/:record/:part'];

/** The console and its files. They need no key: the page itself signs in, and shows no data without that. */
export function consoleRoutes(folder = consoleFolder): Route[] {
  const page = serveBuilt(folder);
  const assets = assetsOf(folder);
  const common = { method: 'GET', tag: 'Operations', scope: 'public' } as const;
  return [
    {
      ...common,
      path: '/console/assets/:file',
      operationId: 'getConsoleAsset',
      summary: 'A script or style of the console',
      description: assetText,
      responses: { 200: { description: 'The file.', contentType: 'text/javascript' } },
      handler: (request, response, next) => {
        const asset = assets.get(String(request.params['file']));
        if (asset === undefined) throw new GatewayError('not_found', 'unknown_url', 'The console has no such file.');
        return asset(request, response, next);
      },
    },
    ...pagePaths.map((pagePath, index): Route => ({
      ...common,
      path: pagePath,
      operationId: ['getConsole', 'getConsolePage', 'getConsoleRecord', 'getConsolePart'][index] ?? '',
      summary: 'The console, a web page',
      description: pageText,
      responses: { 200: { description: 'The page.', contentType: 'text/html' } },
      handler: page,
    })),
  ];
}

const yearSeconds = 31_536_000;

/** The built scripts and styles by name; their names change with their content. */
function assetsOf(folder: string): ReadonlyMap<string, RequestHandler> {
  return new Map(
    namesIn(path.join(folder, 'assets')).map((name) => {
      const contentType = contentTypes[path.extname(name)] ?? 'application/octet-stream';
      const file = path.join(folder, 'assets', name);
      return [name, serveFile({ file, contentType, contentSecurityPolicy, cacheSeconds: yearSeconds })];
    }),
  );
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function serveBuilt(folder: string): RequestHandler {
  if (namesIn(folder).includes('index.html')) {
    const file = path.join(folder, 'index.html');
    return serveFile({ file, contentType: 'text/html', contentSecurityPolicy, cacheSeconds: 0 });
  }
  return () => {
    const message =
      'The console is not built. Run `npm run build:console` and restart. `npm ci` builds it unless scripts or development packages are left out.';
    throw new GatewayError('not_found', 'console_not_built', message);
  };
}
