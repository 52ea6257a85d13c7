import packageFile from '../../package.json' with { type: 'json' };

/** The release, from package.json. All code that names a version uses this constant. */
export const version: string = packageFile.version;
