import { buildConsole } from '#apps/console/build.ts';
import { browserPath } from './browser.ts';

/** Builds the console once, before the first test that opens it. */
export async function setup(): Promise<void> {
  if (browserPath !== undefined) await buildConsole();
}
