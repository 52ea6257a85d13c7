import { createRequire } from 'node:module';
import path from 'node:path';
import type { Route } from '#libs/http/route.ts';
import { assetText, pageText, serveFile } from './static-files.ts';

const bundleFolder = path.dirname(createRequire(import.meta.url).resolve('swagger-ui-dist/package.json'));
const ownFolder = path.join(import.meta.dirname, '../docs');

const pages: readonly {
  name: string;
  folder: string;
  file: string;
  contentType: string;
  summary: string;
  description: string;
}[] = [
  {
    name: '',
    folder: ownFolder,
    file: 'page.html',
    contentType: 'text/html',
    summary: 'The API reference as a page',
    description: `You can try every operation with a key. ${pageText}`,
  },
  ...[
    { folder: ownFolder, file: 'page.js', contentType: 'text/javascript' },
    { folder: ownFolder, file: 'page.css', contentType: 'text/css' },
    { folder: bundleFolder, file: 'swagger-ui-bundle.js', contentType: 'text/javascript' },
    { folder: bundleFolder, file: 'swagger-ui.css', contentType: 'text/css' },
  ].map((page) => ({
    ...page,
    name: `/${page.file}`,
    summary: `${page.file}, a part of the API reference`,
    description: assetText,
  })),
];

/**
 * Swagger UI writes styles into the page and draws its icons from data URLs. Scripts come only from here, and the page
 * can call only this server, so that an entered key stays between the two.
 */
const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

/** `GET /docs`, the API reference rendered from /openapi.json, and its files. They need no key. */
export function docsRoutes(): Route[] {
  return pages.map(({ name, folder, file, contentType, summary, description }): Route => ({
    method: 'GET',
    path: `/docs${name}`,
    operationId: `getDocs${name.replaceAll(/[^a-z]+([a-z])/g, (_match, letter: string) => letter.toUpperCase())}`,
    tag: 'Operations',
    scope: 'public',
    summary,
    description,
    responses: { 200: { description: 'The file.', contentType } },
    handler: serveFile({ file: path.join(folder, file), contentType, contentSecurityPolicy, cacheSeconds: 600 }),
  }));
}
